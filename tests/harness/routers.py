"""Routers as processes of their own, started and stopped by tests."""

import json
import subprocess
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Any, Self

READY = "Waiting for connections"
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 20.0


class RouterProcess:
    """A running ``mergerouter serve``; use it as a context manager or call ``stop``.

    Args:
        arguments: what follows ``serve`` on the command line.
    """

    def __init__(self, arguments: list[str]) -> None:
        self._lines: deque[str] = deque(maxlen=10_000)
        self._ready = threading.Event()
        self._attributes: dict[str, Any] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router.cli", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_TIMEOUT) or not self._attributes:
            self.process.kill()
            raise RuntimeError("the router did not start:\n" + "\n".join(self._lines))

    @property
    def port(self) -> int:
        """Where drivers connect."""
        return int(self._attributes["port"])

    @property
    def feed_port(self) -> int | None:
        """Where the feed is, if it was asked for."""
        return self._attributes.get("feedPort")

    @property
    def uri(self) -> str:
        """The connection string for drivers."""
        return f"mongodb://127.0.0.1:{self.port}/"

    def logs(self) -> list[dict[str, Any]]:
        """The log lines so far, parsed; what is no JSON is kept as ``{"msg": line}``."""
        parsed = []
        for line in list(self._lines):
            try:
                parsed.append(json.loads(line))
            except ValueError:
                parsed.append({"msg": line})
        return parsed

    def stop(self) -> int:
        """End the router politely, after a while for good; return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(_STOP_TIMEOUT)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.rstrip())
            if READY in line:
                self._attributes = json.loads(line)["attr"]
                self._ready.set()
        self._ready.set()


def start_router(
    configdb: str, upstream: str | None = None, *, feed: bool = False, **flags: object
) -> RouterProcess:
    """Start a router on free ports.

    Args:
        configdb: ``rsName/host:port``.
        upstream: ``mongodb://host:port`` of a mongos.
        feed: whether to open a feed.
        flags: further flags, underscores for hyphens; ``port`` when it matters; a dict under
            ``set_parameter``.
    """
    arguments = ["--configdb", configdb, "--port", str(flags.pop("port", 0))]
    if upstream is not None:
        arguments += ["--upstream", upstream]
    if feed:
        arguments += ["--feed-port", "0"]
    parameters = flags.pop("set_parameter", {})
    assert isinstance(parameters, dict)
    for name, value in parameters.items():
        arguments += ["--setParameter", f"{name}={value}"]
    for name, value in flags.items():
        arguments.append("--" + name.replace("_", "-"))
        if value is not True:
            arguments.append(str(value))
    return RouterProcess(arguments)
