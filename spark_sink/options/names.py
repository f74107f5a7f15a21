"""Names of options, and options as fields of dataclasses.

Names are not case sensitive, as everywhere in Spark, and have aliases; unknown ones fail.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from typing import Any, TypeVar

from bson.errors import BSONError

from spark_sink.errors import OptionError

_NO_ALIASES: Mapping[str, str] = {}
_Value = TypeVar("_Value")


def option(name: str, parse: Callable[[str], Any], default: Any, *, shown: bool = True) -> Any:
    """Return a dataclass's field for an option, from its name, its parser and its default.

    A secret is not `shown` where the dataclass is printed.
    """
    return field(default=default, metadata={"option": name, "parse": parse}, repr=shown)


def option_names(kind: Any) -> list[str]:
    """Return the names of the options that are fields of a dataclass."""
    return [each.metadata["option"] for each in fields(kind) if each.metadata]


def fields_in(kind: Any, given: Mapping[str, str], of: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass whose options are given. Raises OptionError."""
    options = [(each.name, each.metadata) for each in fields(kind) if each.metadata]
    return {
        name: parsed_option(data["option"], data["parse"], str(given[data["option"]]), of)
        for name, data in options
        if data["option"] in given
    }


def parsed_option(name: str, parse: Callable[[str], _Value], text: str, of: str = "") -> _Value:
    """Return the parsed value of an option. Raises OptionError; `of` is as for `canonical`."""
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option {name!r}{of} is not JSON: {error}") from error
    except (ValueError, TypeError, BSONError) as error:
        raise OptionError(f"option {name!r}{of}: {error}") from error


def canonical(
    options: Mapping[str, _Value],
    known: Iterable[str],
    aliases: Mapping[str, str] = _NO_ALIASES,
    *,
    of: str = "",
) -> dict[str, _Value]:
    """Return the options under the names in `known`.

    `aliases` are further names in lower case with their meaning; `of` says in messages whose
    options they are. Raises OptionError for unknown options, and for two names of one option.
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
            raise OptionError(f"unknown option {name!r}{of}; {hint}")
        if meant in given:
            raise OptionError(f"options {given[meant]!r} and {name!r} are aliases: set one of them")
        given[meant] = name
    return {meant: options[name] for meant, name in given.items()}
