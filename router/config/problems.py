"""Messages about unknown or invalid settings: the name, the fault, the remedy."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

_WANTED = re.compile(r"Input should be (.+?)(, (unable|got) .*)?$")
_MOST_LISTED = 16
_VALUE_ERROR = "Value error, "
"""The prefix that pydantic adds to the message of a validator's ValueError."""


def describe_problems(
    error: ValidationError, settings: type[BaseModel], noun: str = "setting"
) -> str:
    """Return one sentence for each problem, separated by semicolons.

    ``settings`` is the validated model, which defines the known names; ``noun`` is what one of
    them is called.
    """
    return "; ".join(_describe(problem, settings, noun) for problem in error.errors())


def nearest(name: str, known: Iterable[str], *, required: int = 0) -> str:
    """Return `` Did you mean X?`` for the known name closest to ``name``, or an empty string.

    ``required`` is the length of the prefix that all names share, which is not compared.
    """
    by_folded = {other[required:].casefold(): other for other in known}
    close = get_close_matches(name[required:].casefold(), by_folded, n=1)
    return f" Did you mean {by_folded[close[0]]}?" if close else ""


def _describe(problem: Any, settings: type[BaseModel], noun: str) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        section = name.rpartition(".")[0]
        names = sorted(name for name, _field in fields(settings))
        siblings = [other for other in names if other.rpartition(".")[0] == section]
        sections = {other.split(".")[0] for other in names}
        near = nearest(name, siblings or names, required=len(section))
        near = near or ("" if section else nearest(name, sections))
        if not near and not section:
            near = f" Known are {', '.join(dict.fromkeys(other.split('.')[0] for other in names))}."
        if near or not section or not siblings:
            return f"{name} is not a {noun}.{near}"
        return f"{name} is not a {noun}. Section {section} has {_listed(siblings)}."
    message = problem["msg"].removeprefix(_VALUE_ERROR)
    if not name:
        return str(message)
    if problem["msg"].startswith(_VALUE_ERROR):
        return f"{name}: {message}"
    secret = name in ("security", "net.tls") or name.endswith("assword")
    instead = "" if secret else f", not {problem['input']!r}"
    if problem["type"] == "model_type":
        inner = [path for path, _field in fields(settings) if path.startswith(f"{name}.")]
        return f"{name} must be a section with {_listed(inner)}{instead}"
    wanted = wanted_value(problem)
    if wanted is None:
        return f"{name}: {message[:1].lower()}{message[1:]}{instead}"
    return f"{name} must be {wanted}{instead}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + ", …" * (len(names) > _MOST_LISTED)


def wanted_value(problem: Any) -> str | None:
    """Return what a value must be, in pydantic's words; None for unusual problems."""
    match = _WANTED.match(problem["msg"])
    return match[1] if match else None


def fields(model: type[BaseModel], outer: Sequence[str] = ()) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting of ``model``: its dotted name, as in the file, and its field."""
    for field_name, field in model.model_fields.items():
        path = (*outer, field.alias or field_name)
        section = _section(field.annotation)
        if section is not None:
            yield from fields(section, path)
        else:
            yield ".".join(path), field


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, or None for a single setting, by a field's annotation."""
    candidates = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def comma_separated(text: str) -> list[str]:
    """Return the values of a setting that has several, separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


class Section(BaseModel):
    """A section of the settings: immutable, without unknown names, described by its docstrings.

    A field's name in the file is its own in mixed case, unless the field has an alias.
    """

    model_config = ConfigDict(
        alias_generator=lambda name: to_camel(name) if "_" in name else name,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )
