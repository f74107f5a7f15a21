"""The options of `writeStream.format("mergerouter")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from spark_sink.errors import OptionError
from spark_sink.options import values
from spark_sink.options.names import canonical, parsed_option

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
_FAIL_OR_IGNORE = values.one_of("fail", "ignore")

# What Spark passes beside the sink's own options.
_SPARK_OPTIONS = ("checkpointlocation", "path", "queryname")


@dataclass(frozen=True)
class WriteOptions:
    """Where rows are written, and how.

    Args:
        uri: connection string of the router, or of a mongos.
        database, collection: of the documents; None for those in a row.
        keys: the fields that identify a document.
        token_field: the field of a document with the token of its last change.
        ignores_missing: skip an update of a missing document instead of failing.
        ignores_others: the same for drops and renames of collections.
    """

    uri: str = field(repr=False)
    database: str | None = None
    collection: str | None = None
    keys: tuple[str, ...] = ("_id",)
    token_field: str = DEFAULT_TOKEN_FIELD
    ignores_missing: bool = False
    ignores_others: bool = False


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options that a user gave, validated. Raises OptionError."""
    own = {name: text for name, text in options.items() if name.lower() not in _SPARK_OPTIONS}
    given = canonical(own, _KNOWN, of=" of the sink")
    if ("uri" in given) == ("uriFile" in given):
        raise OptionError("the sink requires one of the options 'uri' and 'uriFile'")

    def get(name: str, parse: Callable[[str], _Value]) -> _Value | None:
        return parsed_option(name, parse, given[name], " of the sink") if name in given else None

    return WriteOptions(
        get("uri", values.router_uri) or get("uriFile", values.uri_in_file) or "",
        get("database", values.database_name),
        get("collection", values.some_text),
        get("keys", values.names) or ("_id",),
        get("tokenField", _field) or DEFAULT_TOKEN_FIELD,
        get("missing", _FAIL_OR_IGNORE) == "ignore",
        get("otherEvents", _FAIL_OR_IGNORE) == "ignore",
    )


def _field(text: str) -> str:
    if not text or "." in text or text.startswith("$") or text == "_id":
        raise ValueError(f"{text!r} cannot be a separate field: use a name without dots and $")
    return text
