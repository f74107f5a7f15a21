"""Router processes that tests start and stop."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from embedded.demo.processes import Program

_START_TIMEOUT = 120.0
_RUN_TIMEOUT = 300.0  # a busy machine starts Java slowly
_STOP_TIMEOUT = 60.0


class RouterProcess(Program):
    """A running ``mergerouter serve``; use it as a context manager or call ``stop``.

    Args:
        arguments: the command line after ``serve``.
        program: the module that is run.
    """

    def __init__(self, arguments: list[str], program: str = "router.cli") -> None:
        super().__init__("the router", ["-m", program, "serve", *arguments])
        self._attributes = self.wait_ready(_START_TIMEOUT)

    @property
    def port(self) -> int:
        """The port for drivers."""
        return int(self._attributes["port"])

    @property
    def feed_port(self) -> int | None:
        """The port of the feed; None without a feed."""
        return self._attributes.get("feedPort")

    @property
    def admin_port(self) -> int:
        """Where metrics, health and status are, if the port was asked for."""
        return int(self._attributes["adminPort"])

    @property
    def uri(self) -> str:
        """The connection string for drivers."""
        return f"mongodb://127.0.0.1:{self.port}/"

    def logs(self) -> list[dict[str, Any]]:
        """The log lines so far, parsed; a line that is no JSON becomes ``{"msg": line}``."""
        parsed = []
        for line in list(self.lines):
            try:
                parsed.append(json.loads(line))
            except ValueError:
                parsed.append({"msg": line})
        return parsed

    def stop(self, timeout: float = _STOP_TIMEOUT) -> int:
        """Terminate the router, and kill it after ``timeout`` seconds; return its exit status."""
        return super().stop(timeout)


def start_router(
    configdb: str,
    upstream: str | None = None,
    *,
    feed: bool = False,
    program: str = "router.cli",
    **flags: object,
) -> RouterProcess:
    """Start a router on free ports.

    Args:
        configdb: ``rsName/host:port``.
        upstream: ``mongodb://host:port`` of a mongos.
        feed: whether to open a feed.
        program: the module that is run.
        flags: further flags with underscores for hyphens, such as ``port``; ``set_parameter`` is a
        dict.
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
    return RouterProcess(arguments, program)


def run_command(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of ``mergerouter`` until it exits by itself; return the finished process.

    ``options`` are those of ``subprocess.run``, such as ``cwd``.
    """
    return subprocess.run(
        [sys.executable, "-m", "router.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT,
        check=False,
        **options,
    )
