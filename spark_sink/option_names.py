"""Names of options: not case sensitive, as everywhere in Spark, with aliases, and never guessed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from spark_sink.errors import OptionError

_NO_ALIASES: Mapping[str, str] = {}
_Value = TypeVar("_Value")


class GetOption(Protocol):
    """Gives the parsed value of an option, or a default where the option is not given."""

    def __call__(self, name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        """The value. Raises OptionError for a text that `parse` does not take."""


def canonical(
    options: Mapping[str, str],
    known: Sequence[str],
    aliases: Mapping[str, str] = _NO_ALIASES,
    *,
    of: str = "",
) -> dict[str, str]:
    """The options under the names in `known`.

    aliases: further names, in lower case, and what they mean; of: whose options they are, for
    messages. Raises OptionError for unknown options, and for two names of one option.
    """
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    given: dict[str, str] = {}
    for name, text in options.items():
        meant = names.get(aliases.get(name.lower(), name).lower())
        if meant is None:
            close = difflib.get_close_matches(name.lower(), names, n=1)
            hint = f"did you mean {names[close[0]]!r}?" if close else f"known: {', '.join(known)}"
            raise OptionError(f"unknown option {name!r}{of}; {hint}")
        if meant in given:
            raise OptionError(f"options {given[meant]!r} and {name!r} mean the same: give one")
        given[meant] = name
        found[meant] = text
    return found
