"""Exceptions planted at lines of the path from a shard's block to its readers.

A line is chosen by seed, and raises at one of its executions. The planted statement is compiled
into the function's own code, so that all other lines run as they are, and as fast.
"""

import ast
import decimal
import importlib
import inspect
import pkgutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from random import Random
from types import CodeType, FunctionType, ModuleType
from typing import Any
from unittest import mock

MARK = "planted by the simulation"
"""The text of each planted exception."""

_ERRORS: tuple[type[Exception], ...] = (
    KeyError, ValueError, IndexError, RuntimeError, MemoryError, TypeError, AssertionError,
    RecursionError, struct.error, decimal.Inexact, OverflowError,
)  # fmt: skip

_PATH = ("router.stream", "router.filters", "router.cursors.cursor", "router.request.resume_point")
"""The packages and modules that are on the path."""

_OFF_THE_PATH = frozenset(
    {"admission", "match_compiler", "noop_writer", "opening", "pacing", "read_scheduler"}
)
"""Modules of these packages that are not: they begin streams, or pace the reading of shards."""

_NOT_BETWEEN = frozenset(
    {
        "__init__", "_begin", "_end", "_gone", "_join", "_keep", "_leave", "_moved",
        "_new", "_stop_if_broken", "close", "compile_filter", "compile_project", "compile_unset",
        "describe", "enter", "fail", "find_or_open", "interrupt", "kill", "leave", "open",
        "remote_failed", "remove", "retire_remote", "spawn", "start", "starting_point",
        "stop_reading",
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


@dataclass(frozen=True)
class Line:
    """A statement of a function on the path."""

    module: str
    function: str
    """The function's qualified name."""
    number: int

    def __str__(self) -> str:
        return f"{self.module}.{self.function}, line {self.number}"


def draw_plantings(chance: Random) -> tuple[Planting, ...]:
    """Draw the exceptions of one run."""
    return tuple(
        Planting(chance.random(), chance.randrange(len(_ERRORS)), chance.choice((1, 2, 5, 20)))
        for _ in range(chance.choice((3, 6, 12)))
    )


class Planted:
    """The exceptions of one run; ``armed`` until the end, ``note`` is told of each."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.armed = True
        self.raised = 0
        self._note = note

    def hook(self, planting: Planting, line: Line) -> Callable[[], None]:
        """Return what the line calls before it is executed."""
        left = planting.execution

        def execute() -> None:
            nonlocal left
            left -= 1
            if left == 0 and self.armed:
                error = _ERRORS[planting.error](MARK)
                self.raised += 1
                self._note(f"planted {error!r} in {line}")
                raise error

        return execute


@contextmanager
def planted(plantings: tuple[Planting, ...], note: Callable[[str], None]) -> Iterator[Planted]:
    """Plant the exceptions during the block."""
    state = Planted(note)
    with ExitStack() as stack:
        for number, planting in enumerate(plantings):
            lines = lines_of_the_path()
            line = lines[int(planting.place * len(lines))]
            module = importlib.import_module(line.module)
            hook = f"planted{number}"
            function = _live(module, line.function)
            if function.__code__.co_qualname != line.function:
                continue  # a deliberate defect has replaced it
            if _is_expected(module, line, _ERRORS[planting.error]):
                continue
            code = _with_call(module, line, hook)
            stack.enter_context(
                mock.patch.dict(module.__dict__, {hook: state.hook(planting, line)})
            )
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code  # of two lines in one function the last one raises
        yield state


def _is_expected(module: ModuleType, line: Line, error: type[Exception]) -> bool:
    """Return whether the code around a line expects such an error, as of a malformed token."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Try):
            continue
        if not any(each.lineno <= line.number <= (each.end_lineno or 0) for each in node.body):
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
def lines_of_the_path() -> tuple[Line, ...]:
    """Return all lines on which exceptions are planted."""
    lines: list[Line] = []
    unseen = set(_NOT_BETWEEN)
    for module in modules_of_the_path(_OFF_THE_PATH):
        for qualified, function in _functions(ast.parse(inspect.getsource(module)), ""):
            unseen.discard(function.name)
            if function.name not in _NOT_BETWEEN:
                numbers = {each.lineno for each in _statements(function)}
                lines += [Line(module.__name__, qualified, number) for number in sorted(numbers)]
    assert not unseen, f"not on the path, and nowhere else: {unseen}"
    return tuple(lines)


def modules_of_the_path(without: frozenset[str]) -> Iterator[ModuleType]:
    """Yield the modules of the path, without some that are known by their own names."""
    unseen = set(without)
    for package in _PATH:
        found = importlib.import_module(package)
        inner = pkgutil.iter_modules(getattr(found, "__path__", ()), f"{package}.")
        for name in [each.name for each in inner] or [package]:
            own = name.rpartition(".")[2]
            unseen.discard(own)
            if own not in without:
                yield importlib.import_module(name)
    assert not unseen, f"no modules of the path: {unseen}"


def _functions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a module and of its classes, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            if not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a function, without docstrings and nested functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Nonlocal):
            continue
        if isinstance(child, ast.stmt) and not _is_docstring(child):
            yield child
        yield from _statements(child)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Inserter(ast.NodeTransformer):
    """Inserts a call before the statement at a line."""

    def __init__(self, line: int, hook: str) -> None:
        self._line = line
        self._hook = hook

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and any(isinstance(each, ast.stmt) for each in value):
                setattr(node, name, [new for each in value for new in self._before(each)])
        return super().generic_visit(node)

    def _before(self, statement: ast.stmt) -> list[ast.stmt]:
        if statement.lineno != self._line:
            return [statement]
        call = ast.Expr(ast.Call(ast.Name(self._hook, ast.Load()), [], []))
        return [ast.fix_missing_locations(ast.copy_location(call, statement)), statement]


def _with_call(module: ModuleType, line: Line, hook: str) -> CodeType:
    """Return a function's code with a call of the global ``hook`` before the line."""
    tree = _Inserter(line.number, hook).visit(ast.parse(inspect.getsource(module)))
    path = module.__file__ or ""
    found = _code_of(compile(tree, path, "exec", dont_inherit=True), line.function)
    assert found is not None, line
    return found


def _code_of(code: CodeType, qualified: str) -> CodeType | None:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_qualname == qualified:
                return each
            if (found := _code_of(each, qualified)) is not None:
                return found
    return None


def _live(module: ModuleType, qualified: str) -> FunctionType:
    """Return the function object in use."""
    found: Any = module
    for name in qualified.split("."):
        found = vars(found)[name]
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    assert isinstance(inspect.unwrap(found), FunctionType), qualified
    return inspect.unwrap(found)  # type: ignore[no-any-return]
