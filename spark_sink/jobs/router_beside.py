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
from functools import partial
from pathlib import Path

from pymongo.uri_parser import parse_uri

from spark_sink.console import say
from spark_sink.errors import OptionError, SourceError
from spark_sink.folders import Folder, is_local
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.stream.router_client import require_cluster

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


@contextmanager
def router_beside(settings: JobSettings) -> Iterator[None]:
    """Run `mergerouter serve` beside the job for the block, unless a router answers at its `uri`.

    Without `configdb` and `router_config` none is started. The router listens on 127.0.0.1, on the
    URI's port. Raises OptionError if `uri` does not name one local port, SourceError if the router
    does not start, and OSError if its log cannot be written.
    """
    names = {"config": "router_config", "configdb": "configdb", "upstream": "upstream"}
    given = {f"--{flag}": getattr(settings, name) for flag, name in names.items()}
    flags = [part for flag, value in given.items() if value for part in (flag, value)]
    if not flags or _answers(settings.uri):
        yield
        return
    nodes = parse_uri(settings.uri)["nodelist"]
    if len(nodes) != 1 or nodes[0][0] not in ("127.0.0.1", "localhost"):
        raise OptionError(
            "the job's router runs on this machine: --uri must name one port of 127.0.0.1"
        )
    port = str(nodes[0][1])
    command = [sys.executable, "-m", "router.cli", "serve", "--port", port, *flags]
    with _running(command, _log_of(settings)):
        yield


def _log_of(settings: JobSettings) -> Path:
    """Return the file for the router's log, and print its name; that of the run before is kept.

    It is in the job's folder, or in that of the checkpoint; if both are remote, in a new one.
    """
    places = [place for place in (settings.out, settings.checkpoint) if place and is_local(place)]
    folder = Folder(places[0]).files.base_path if places else tempfile.mkdtemp("-mergerouter")
    log = Path(folder) / "router.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    say(f"a router runs beside the job; its log is {log}")
    return log


def _answers(uri: str) -> bool:
    """Return whether a router answers. Raises OptionError."""
    try:
        require_cluster({"uri": uri})
    except OptionError:
        raise
    except SourceError:
        return False
    return True


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    """Run a router for the block, once it listens, with its output in `log`.

    Raises SourceError if it does not start, and OSError.
    """
    prctl = ctypes.CDLL(None).prctl
    with log.open("wb") as output:
        # A session of its own: Ctrl-C ends the job first, which then ends its router. The kernel
        # ends that when the job ends, however that happens.
        process = subprocess.Popen(  # noqa: S603
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(prctl, _PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while b'"Waiting for connections"' not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                cause = _cause(log.read_text(errors="replace"))
                raise SourceError(f"the job's own router does not start: {cause}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(log: str) -> str:
    """Return the last line of the router's log that says what is wrong."""
    for line in reversed(log.splitlines()):
        try:
            parsed = json.loads(line)
        except ValueError:
            return line.removeprefix("error: ")
        if parsed.get("s") in ("W", "E", "F"):
            attributes = parsed.get("attr", {})
            detail = attributes.get("error") or attributes.get("problem") or ""
            return f"{parsed['msg']}: {detail}"
    return "it says nothing"
