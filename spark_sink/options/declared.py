"""Options as fields of dataclasses, which have a name, a parser of texts and a default each.

Names are not case sensitive, as everywhere in Spark, and have aliases; unknown ones fail.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar, cast

from spark_sink.errors import OptionError

_NO_ALIASES: Mapping[str, str] = {}
_Value = TypeVar("_Value")


def option(name: str, parse: Callable[[str], Any], default: Any, *, shown: bool = True) -> Any:
    """Return a dataclass's field for an option, from its name, its parser and its default.

    A secret is not `shown` where the dataclass is printed.
    """
    return field(default=default, metadata={"option": name, "parse": parse}, repr=shown)


def option_names(kind: Any) -> list[str]:
    """Return the names of the options that are fields of a dataclass, and of dataclasses in it."""
    names: list[str] = []
    for declared in fields(kind):
        if declared.metadata:
            names.append(declared.metadata["option"])
        elif is_dataclass(declared.default_factory):
            names += option_names(declared.default_factory)
    return names


def parsed(kind: type[_Value], given: Mapping[str, Any], owner: str = "", **further: Any) -> _Value:
    """Return a dataclass of the options that are given, and of `further` fields.

    A field that is a dataclass has its options among the same ones. Raises OptionError.
    """
    for declared in fields(cast("Any", kind)):
        name, part = declared.metadata.get("option", ""), declared.default_factory
        if name in given:
            text = str(given[name])
            further[declared.name] = parsed_option(name, declared.metadata["parse"], text, owner)
        elif is_dataclass(part) and declared.name not in further:
            further[declared.name] = parsed(cast("Any", part), given, owner)
    return kind(**further)


def parsed_option(name: str, parse: Callable[[str], _Value], text: str, owner: str = "") -> _Value:
    """Return the parsed value of an option. Raises OptionError; `owner` is as for `canonical`."""
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option {name!r}{owner} is not JSON: {error}") from error
    except (ValueError, TypeError) as error:
        raise OptionError(f"option {name!r}{owner}: {error}") from error


def argument(parse: Callable[[Any], _Value], given: Any, name: str) -> _Value:
    """Return a parsed argument. Raises OptionError, with the argument's `name`."""
    try:
        return parse(given)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def canonical(
    options: Mapping[str, _Value],
    known: Iterable[str],
    aliases: Mapping[str, str] = _NO_ALIASES,
    *,
    owner: str = "",
) -> dict[str, _Value]:
    """Return the options under the names in `known`.

    `aliases` are further names in lower case with their meaning; `owner` follows an
    option's name in messages. Raises OptionError for unknown options, and for two names of one.
    """
    names = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for name in options:
        meant = names.get(aliases.get(name.lower(), name).lower())
        if meant is None:
            close = difflib.get_close_matches(name.lower(), names, n=1)
            hint = "docs/spark-reference.md and docs/debezium.md list them"
            if close:
                hint = f"did you mean {names[close[0]]!r}?"
            raise OptionError(f"unknown option {name!r}{owner}; {hint}")
        if meant in given:
            raise OptionError(f"options {given[meant]!r} and {name!r} are aliases: set one of them")
        given[meant] = name
    return {meant: options[name] for meant, name in given.items()}
