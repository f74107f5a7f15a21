"""Messages about unknown or invalid settings: the name, the fault, the remedy."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_VALUE_ERROR = "Value error, "
"""The prefix that pydantic adds to the message of a validator's ValueError."""


def describe_problems(error: ValidationError, settings: type[BaseModel]) -> str:
    """Return one sentence for each problem, separated by semicolons.

    Args:
        error: the validation error of pydantic.
        settings: the validated model, which defines the known names.
    """
    return "; ".join(_describe(problem, settings) for problem in error.errors())


def nearest(name: str, known: Iterable[str], *, required: int = 0) -> str:
    """Return `` Did you mean X?`` for the known name closest to ``name``, or an empty string.

    Args:
        name: the name as written.
        known: the names to choose from.
        required: the length of the prefix that all names share; it is not compared.
    """
    by_folded = {each[required:].casefold(): each for each in known}
    close = get_close_matches(name[required:].casefold(), by_folded, n=1)
    return f" Did you mean {by_folded[close[0]]}?" if close else ""


def _describe(problem: Any, settings: type[BaseModel]) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section = name.rpartition(".")[0]
        names = sorted(_names(settings))
        siblings = [each for each in names if each.rpartition(".")[0] == section]
        near = nearest(name, siblings or names, required=len(section))
        if near or not section or not siblings:
            return f"{name} is not a setting.{near}"
        return f"{name} is not a setting. Section {section} has {', '.join(siblings)}."
    message = problem["msg"].removeprefix(_VALUE_ERROR)
    if not name:
        return str(message)
    if problem["msg"].startswith(_VALUE_ERROR):
        return f"{name}: {message}"
    given = "" if name.endswith("assword") else f", but is {problem['input']!r}"
    return f"{name}: {message[:1].lower()}{message[1:]}{given}"


def _names(model: type[BaseModel], outer: Sequence[str] = ()) -> Iterator[str]:
    """Yield the dotted names of all settings, as in the file."""
    for field_name, field in model.model_fields.items():
        path = (*outer, field.alias or field_name)
        section = _section(field.annotation)
        if section is not None:
            yield from _names(section, path)
        else:
            yield ".".join(path)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, or None for a single setting."""
    candidates = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    for each in candidates:
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None
