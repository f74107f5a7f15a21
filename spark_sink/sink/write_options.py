"""The options of `writeStream.format("mergerouter")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from spark_sink import option_values as values
from spark_sink.errors import OptionError
from spark_sink.option_names import canonical

DEFAULT_TOKEN_FIELD = "_token"  # noqa: S105

_KNOWN = (
    "uri",
    "uriFile",
    "database",
    "collection",
    "keys",
    "tokenField",
    "missing",
    "otherEvents",
)
_Value = TypeVar("_Value")

# What Spark hands over beside the sink's own options.
_OF_SPARK = ("checkpointlocation", "path", "queryname")


@dataclass(frozen=True)
class WriteOptions:
    """Where rows are written, and how.

    uri: connection string of the router, or of a mongos; database, collection: of the documents,
    None for those that a row names; keys: the fields by which a document is found; token_field:
    the field of a document that holds the token of the last change in it; ignores_missing: an
    update of a document that is not there is left out, instead of failing; ignores_others: the
    same for drops and renames of collections.
    """

    uri: str = field(repr=False)
    database: str | None = None
    collection: str | None = None
    keys: tuple[str, ...] = ("_id",)
    token_field: str = DEFAULT_TOKEN_FIELD
    ignores_missing: bool = False
    ignores_others: bool = False


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options that a user gave, checked. Raises OptionError."""
    own = {name: text for name, text in options.items() if name.lower() not in _OF_SPARK}
    given = canonical(own, _KNOWN, of=" of the sink")
    if ("uri" in given) == ("uriFile" in given):
        raise OptionError("the sink needs one of the options 'uri' and 'uriFile'")
    if "uri" in given:
        uri = _checked("uri", values.router_uri, given["uri"])
    else:
        uri = _checked("uriFile", values.uri_in_file, given["uriFile"])
    return WriteOptions(
        uri,
        _parsed(given, "database", values.database_name),
        _parsed(given, "collection", values.some_text),
        _parsed(given, "keys", values.names) or ("_id",),
        _parsed(given, "tokenField", _field) or DEFAULT_TOKEN_FIELD,
        bool(_parsed(given, "missing", _ignores)),
        bool(_parsed(given, "otherEvents", _ignores)),
    )


def _parsed(given: Mapping[str, str], name: str, parse: Callable[[str], _Value]) -> _Value | None:
    return _checked(name, parse, given[name]) if name in given else None


def _checked(name: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"option {name!r} of the sink: {error}") from error


def _ignores(text: str) -> bool:
    if text.lower() not in ("fail", "ignore"):
        raise ValueError(f"must be fail or ignore, not {text!r}")
    return text.lower() == "ignore"


def _field(text: str) -> str:
    if not text or "." in text or text.startswith("$") or text == "_id":
        raise ValueError(f"{text!r} cannot be a field of its own: give a name without dots and $")
    return text
