"""The programs that a benchmark starts: their lines, their results, and routers among them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from select import select
from threading import Timer
from typing import Any, Self

READY = "Waiting for connections"
_PATIENCE = 900.0
"""Seconds in which a program prints what is awaited of it, or ends."""
_GRACE = 30.0
"""Seconds from a program's SIGTERM to its SIGKILL."""


class Program:
    """A running module that prints lines and reads lines from its stdin.

    Leave the context to end the process.

    Args:
        module: the module's dotted name.
        arguments: its command line.
        cores: the cores that it may use; None for those of the caller.
    """

    def __init__(self, module: str, *arguments: str, cores: set[int] | None = None) -> None:
        self._name = " ".join((module, *arguments))
        command, own = [sys.executable, "-m", module, *arguments], os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores or own)  # the child inherits the affinity
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        finally:
            os.sched_setaffinity(0, own)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tell(self, line: str = "") -> None:
        """Send a line: the program's signal to go on or to finish."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def begins_within(self, seconds: float) -> bool:
        """Return whether the program prints its first line within some seconds."""
        assert self._process.stdout is not None
        return bool(select([self._process.stdout], [], [], seconds)[0])

    def line(self, seconds: float = _PATIENCE) -> str:
        """Return the program's next line.

        Raises:
            RuntimeError: the program has ended, or prints none for some seconds and is killed.
        """
        assert self._process.stdout is not None
        timer = Timer(seconds, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"{self._name} has ended, or printed nothing for {seconds:g} s")
        return line


@contextlib.contextmanager
def running(module: str, *arguments: str) -> Iterator[Program]:
    """Run a program during the block, from when it prints that it is ready."""
    with Program(module, *arguments) as program:
        program.line()
        yield program


def results_of(programs: Sequence[Program]) -> list[dict[str, Any]]:
    """Signal all programs, then return the JSON object that each of them prints."""
    for program in programs:
        program.tell()
    return [json.loads(program.line()) for program in programs]


def flags(**given: Any) -> list[str]:
    """Return a command line with these options; the values of a list follow its name."""
    parts = []
    for name, value in given.items():
        values = value if isinstance(value, list | tuple) else [value]
        parts += [f"--{name.replace('_', '-')}", *map(str, values)] if values else []
    return parts


def run_json(*arguments: str) -> dict[str, Any]:
    """Run a Python program to its end and return the last JSON object on a line of its output.

    Raises:
        CalledProcessError: the program fails.
        RuntimeError: it prints nothing.
        TimeoutExpired: the program has not ended after ``_PATIENCE`` seconds.
    """
    command = [sys.executable, *arguments]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=_PATIENCE, check=True
    )
    objects = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not objects:
        raise RuntimeError(f"{' '.join(arguments)} has no result")
    result: dict[str, Any] = json.loads(objects[-1])
    return result


@contextlib.contextmanager
def serve(
    servers: str,
    *arguments: str,
    cores: set[int] | None = None,
    flag: str = "--configdb",
    module: str = "router.cli",
) -> Iterator[tuple[int, int]]:
    """Run `mergerouter serve`, or a module like it; yield its port and its process id."""
    command = ("serve", flag, servers, "--port", "0", *arguments)
    with Program(module, *command, cores=cores) as program:
        while READY not in (line := program.line()):
            pass
        yield json.loads(line)["attr"]["port"], program.pid


def port_of(host: str) -> str:
    """Return the port at the end of a host string."""
    return host.rpartition(":")[2]
