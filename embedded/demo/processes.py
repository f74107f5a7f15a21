"""The demo's child processes: start, wait for the ready line, stop."""

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY = "Waiting for connections"


class ProgramError(Exception):
    """A program of the demo did not start or ended early; the message ends with its output."""


class Program:
    """A child process that logs JSON lines to stdout, as the project's programs do.

    Args:
        name: its name in messages.
        arguments: the command line after the Python interpreter.
        log: a file for all of its output; ``lines`` keeps the last 10,000 lines in any case.
        environment: further environment variables, for what a command line must not show.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=10_000)
        self._ready = threading.Event()
        self._attributes: dict[str, Any] = {}
        self._log = log
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float) -> dict[str, Any]:
        """Return the attributes of the program's ready line.

        Args:
            timeout: seconds to wait.

        Raises:
            ProgramError: the program ended, or printed no ready line in time.
        """
        if not self._ready.wait(timeout) or not self._attributes:
            self.stop()
            raise ProgramError(
                f"{self.name} did not start; its last output:\n" + self.last_output()
            )
        return self._attributes

    def last_output(self) -> str:
        """Return the last lines that the program printed."""
        return "\n".join(list(self.lines)[-20:])

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def stop(self, timeout: float = 10.0) -> int:
        """Terminate the program, kill it after ``timeout`` seconds, and return its exit status."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
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
        with self._log.open("w") if self._log is not None else nullcontext() as log:
            for line in self.process.stdout:
                if log is not None:
                    log.write(line)
                    log.flush()
                self.lines.append(line.rstrip())
                if READY in line:
                    self._attributes = json.loads(line)["attr"]
                    self._ready.set()
        self._ready.set()
