"""Programs of the benchmark: processes that signals on their stdin control."""

import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self


class Program:
    """A running module that prints a line when it is ready and reads lines from its stdin.

    Leave the context to end the process.

    Args:
        module: the module's dotted name.
        arguments: its command line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def tell(self) -> None:
        """Send an empty line: the program's signal to go on or to finish."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Wait for the next line and return it. Raises RuntimeError if the program has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a program of the benchmark has ended")
        return line


def results_of(programs: Sequence[Program]) -> list[dict[str, Any]]:
    """Signal all programs, then return the JSON object that each of them prints."""
    for program in programs:
        program.tell()
    return [json.loads(program.line()) for program in programs]
