"""Exceptions planted at lines of the path from a shard's block to its readers.

A line is chosen by seed, and raises at one of its executions.
"""

import ast
import asyncio
import decimal
import importlib
import inspect
import pkgutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import CodeType, FrameType, ModuleType
from typing import Any

MARK = "planted by the simulation"
"""The text of each planted exception."""

_ERRORS: tuple[type[Exception], ...] = (
    KeyError, ValueError, IndexError, RuntimeError, MemoryError, TypeError, AssertionError,
    RecursionError, struct.error, decimal.Inexact, OverflowError,
)  # fmt: skip

_PATH = ("router.stream", "router.filters", "router.cursors.cursor")
"""The packages and modules that are on the path."""

_OFF_THE_PATH = frozenset(
    {
        "flow_control", "match_compiler", "noop_writer", "read_scheduler", "remote_progress",
        "rounds",
    }
)  # fmt: skip
"""Modules of these packages that are not: they begin streams, or pace the reading of shards."""

Line = tuple[str, int]
"""A file and the number of a line."""

_NOT_BETWEEN = frozenset(
    {
        "__init__", "_become_open", "_begin", "_close", "_close_cursor", "_close_logged", "_end",
        "_enter", "_fail_opening", "_join", "_leave", "_locate", "_make_main", "_new",
        "_new_cursor", "_open_without_late", "_retire", "_size_log", "_stop_if_broken",
        "cancel_step", "change", "charge_probes", "clear", "close", "compile_filter",
        "compile_project", "compile_unset", "describe", "end_delay", "enter", "fail",
        "find_or_open", "interrupt",
        "leave", "locate", "open", "remote_failed", "remove", "retire_remote", "starting_point",
        "stop_reading", "wait_opened",
    }
)  # fmt: skip
"""Functions that serve when something is opened, entered, fails or ends, not between a block and
its readers."""


@dataclass(frozen=True)
class Planting:
    """One planted exception: the line, by its place among all lines, and the execution of it."""

    place: float
    error: int
    execution: int


def draw_plantings(chance: Random) -> tuple[Planting, ...]:
    """Draw the exceptions of one run."""
    return tuple(
        Planting(chance.random(), chance.randrange(len(_ERRORS)), chance.choice((1, 2, 5, 20)))
        for _ in range(chance.choice((3, 6, 12)))
    )


class Planted:
    """A trace function that raises at lines of the path while it is ``armed``.

    Args:
        errors: for each line its error, and the execution at which it raises.
        note: told of each.
        left_out: the names of functions that are not traced.
    """

    def __init__(
        self,
        errors: Mapping[Line, tuple[Exception, int]],
        note: Callable[[str], None] = lambda _: None,
        left_out: frozenset[str] = _NOT_BETWEEN,
    ) -> None:
        self.armed = True
        self.seen: dict[Line, None] = {}
        """The lines that were executed."""
        self.raised: list[Line] = []
        self._errors = dict(errors)
        self._note = note
        self._left_out = left_out
        self._files = {str(module.__file__) for module in modules_of_the_path()}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        """Return what traces the frame's lines; raise at a planted line."""
        code = frame.f_code
        if code.co_filename not in self._files or code.co_name in self._left_out:
            return None
        if event == "line":
            line = (code.co_filename, frame.f_lineno)
            self.seen[line] = None
            if self.armed and line in self._errors:
                self._execute(line)
        return self

    def _execute(self, line: Line) -> None:
        error, left = self._errors.pop(line)
        if left > 1:
            self._errors[line] = error, left - 1
            return
        self.raised.append(line)
        self._note(f"planted {error!r} at {Path(line[0]).name}, line {line[1]}")
        # A trace function that raises is removed.
        asyncio.get_running_loop().call_soon(sys.settrace, self)
        raise error


@contextmanager
def tracing(planted: Planted) -> Iterator[Planted]:
    """Raise the planted exceptions during the block."""
    sys.settrace(planted)
    try:
        yield planted
    finally:
        sys.settrace(None)


def planted(plantings: tuple[Planting, ...], note: Callable[[str], None]) -> Planted:
    """Return the exceptions of one run, but those that the code around their lines expects."""
    errors = {}
    for each in plantings:
        lines = lines_of_the_path()
        module, number = lines[int(each.place * len(lines))]
        if not _is_expected(module, number, _ERRORS[each.error]):
            errors[str(module.__file__), number] = _ERRORS[each.error](MARK), each.execution
    return Planted(errors, note)


def _is_expected(module: ModuleType, number: int, error: type[Exception]) -> bool:
    """Return whether the code around a line expects such an error, as of a malformed token."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Try):
            continue
        if not any(each.lineno <= number <= (each.end_lineno or 0) for each in node.body):
            continue
        for handler in node.handlers:
            caught = eval(ast.unparse(handler.type), vars(module)) if handler.type else Exception
            kinds = caught if isinstance(caught, tuple) else (caught,)
            if any(
                each not in (Exception, BaseException) and issubclass(error, each) for each in kinds
            ):
                return True
    return False


@cache
def lines_of_the_path() -> tuple[tuple[ModuleType, int], ...]:
    """Return all lines on which exceptions are planted."""
    lines: list[tuple[ModuleType, int]] = []
    unseen = set(_NOT_BETWEEN)
    for module in modules_of_the_path():
        file = str(module.__file__)
        for code in _functions(compile(inspect.getsource(module), file, "exec")):
            unseen.discard(code.co_name)
            if code.co_name not in _NOT_BETWEEN:
                numbers = {number for _, _, number in code.co_lines() if number}
                lines += [(module, each) for each in sorted(numbers - {code.co_firstlineno})]
    assert not unseen, f"not on the path, and nowhere else: {unseen}"
    return tuple(lines)


@cache
def modules_of_the_path() -> tuple[ModuleType, ...]:
    """Return the modules of the path."""
    found, unseen = [], set(_OFF_THE_PATH)
    for package in _PATH:
        path = getattr(importlib.import_module(package), "__path__", ())
        inner = pkgutil.walk_packages(path, f"{package}.")
        for name in [each.name for each in inner] or [package]:
            own = name.rpartition(".")[2]
            unseen.discard(own)
            if own not in _OFF_THE_PATH:
                found.append(importlib.import_module(name))
    assert not unseen, f"no modules of the path: {unseen}"
    return tuple(found)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions in a module's or a class's code, without nested ones."""
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_flags & inspect.CO_OPTIMIZED:
            yield each
        elif isinstance(each, CodeType):
            yield from _functions(each)
