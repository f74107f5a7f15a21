"""A router of a job's own, for a cluster beside which none runs."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from pymongo.uri_parser import parse_uri

from spark_sink.errors import OptionError, SourceError
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.router_client import RouterClient

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


@contextmanager
def router_beside(
    uri: str, configdb: str | None, upstream: str | None, config: str | None = None
) -> Iterator[None]:
    """Start a router for the block, if its settings are given and none answers at the URI.

    Args:
        uri: the job's connection string.
        configdb: the value of --configdb, or None.
        upstream: the value of --upstream, or None.
        config: the router's configuration file, or None. The two before override it.

    Raises:
        OptionError: the arguments contradict each other.
        SourceError: the router does not start.
    """
    if configdb is None and config is None:
        if upstream is not None:
            raise OptionError("--upstream is for the router that --configdb starts: pass both")
        yield
        return
    try:
        require_router({"uri": uri})
    except OptionError:
        raise
    except SourceError:
        with OwnRouter(configdb, upstream, uri, config):
            yield
    else:
        yield


def require_router(options: dict[str, str]) -> None:
    """Check options and router before the slow start of Spark. Raises SourceError."""
    client = RouterClient(parse_options(options))
    try:
        client.require_stream()
    finally:
        client.close()


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class OwnRouter:
    """`mergerouter serve` as a process beside the job; use it as a context manager.

    It listens on 127.0.0.1, on the port of the job's connection string, and ends with the block.

    Args:
        configdb: the cluster's config server, as rsName/host:port; None where ``config`` names it.
        upstream: the mongos that snapshots are read through, as mongodb://host:port; None for none.
        uri: the job's connection string. Raises OptionError unless it names one local port.
        config: a configuration file for `mergerouter serve`, which has what a secured cluster
            requires: the key file, the router's user, TLS.
    """

    def __init__(
        self, configdb: str | None, upstream: str | None, uri: str, config: str | None = None
    ) -> None:
        nodes = parse_uri(uri)["nodelist"]
        if len(nodes) != 1 or nodes[0][0] not in ("127.0.0.1", "localhost"):
            raise OptionError(
                "the job's router runs on this machine: --uri must name one port of 127.0.0.1"
            )
        self._arguments = ["--port", str(nodes[0][1])]
        flags = {"--config": config, "--configdb": configdb, "--upstream": upstream}
        for flag, value in flags.items():
            if value is not None:
                self._arguments += [flag, value]

    def __enter__(self) -> Self:
        """Start the router and wait until it listens. Raises SourceError."""
        self._folder = tempfile.TemporaryDirectory(prefix="mergerouter-own-")
        self._log = Path(self._folder.name) / "router.log"
        command = [sys.executable, "-m", "router.cli", "serve", *self._arguments]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C ends the job first, which then ends its router.
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not self._listens():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SourceError(f"the job's own router does not start: {self._cause()}")
                time.sleep(0.1)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _listens(self) -> bool:
        return b'"Waiting for connections"' in self._log.read_bytes()

    def _cause(self) -> str:
        """Return the last line of the router's log that says what is wrong."""
        lines = self._log.read_text(errors="replace").splitlines()
        for line in reversed(lines):
            try:
                parsed = json.loads(line)
            except ValueError:
                return line.removeprefix("error: ")
            if parsed.get("s") in ("W", "E", "F"):
                attributes = parsed.get("attr", {})
                detail = attributes.get("error") or attributes.get("problem") or ""
                return f"{parsed['msg']}: {detail}"
        return "it says nothing"

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
