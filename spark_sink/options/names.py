"""Names of options: not case sensitive, as everywhere in Spark, with aliases; unknown ones fail."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from bson.errors import BSONError

from spark_sink.errors import OptionError

_NO_ALIASES: Mapping[str, str] = {}
_Value = TypeVar("_Value")


class GetOption(Protocol):
    """Returns the parsed value of an option, or a default if the option is not given."""

    def __call__(self, name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        """Return the value. Raises OptionError for a text that `parse` rejects."""


def parsed_option(name: str, parse: Callable[[str], _Value], text: str, of: str = "") -> _Value:
    """Return the parsed value of an option. Raises OptionError; `of` is as for `canonical`."""
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option {name!r}{of} is not JSON: {error}") from error
    except (ValueError, TypeError, BSONError) as error:
        raise OptionError(f"option {name!r}{of}: {error}") from error


def canonical(
    options: Mapping[str, str],
    known: Sequence[str],
    aliases: Mapping[str, str] = _NO_ALIASES,
    *,
    of: str = "",
) -> dict[str, str]:
    """Return the options under the names in `known`.

    `aliases` are further names in lower case with their meaning; `of` says in messages whose
    options they are. Raises OptionError for unknown options, and for two names of one option.
    """
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    given: dict[str, str] = {}
    for name, text in options.items():
        meant = names.get(aliases.get(name.lower(), name).lower())
        if meant is None:
            close = difflib.get_close_matches(name.lower(), names, n=1)
            hint = "docs/spark-reference.md lists them"
            if close:
                hint = f"did you mean {names[close[0]]!r}?"
            raise OptionError(f"unknown option {name!r}{of}; {hint}")
        if meant in given:
            raise OptionError(f"options {given[meant]!r} and {name!r} are aliases: set one of them")
        given[meant] = name
        found[meant] = text
    return found
