"""The options of `writeStream.format("mergerouter")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_sink.options import values
from spark_sink.options.names import canonical, fields_in, option, option_names
from spark_sink.options.stream_options import required_uri

_OF = " of the sink"


def _field(text: str) -> str:
    if not text or "." in text or text.startswith("$") or text == "_id":
        raise ValueError(f"{text!r} cannot be a separate field: use a name without dots and $")
    return text


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
    database: str | None = option("database", values.database_name, None)
    collection: str | None = option("collection", values.some_text, None)
    keys: tuple[str, ...] = option("keys", values.names, ("_id",))
    token_field: str = option("tokenField", _field, "_token")
    ignores_missing: bool = option("missing", values.switch("fail", "ignore"), False)
    ignores_others: bool = option("otherEvents", values.switch("fail", "ignore"), False)


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options that a user gave, validated. Raises OptionError."""
    own = {name: text for name, text in options.items() if name.lower() not in _SPARK_OPTIONS}
    given = canonical(own, ("uri", "uriFile", *option_names(WriteOptions)), of=_OF)
    uri = required_uri(given, "the sink requires one of the options 'uri' and 'uriFile'", _OF)
    return WriteOptions(uri, **fields_in(WriteOptions, given, _OF))
