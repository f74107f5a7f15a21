"""What rows do to documents, folded so that each document is written as seldom as possible.

A change has the token of the event that it comes from. A document keeps the token of the last
change in it, and a change applies only to a document with a smaller token, or with none. So a batch
that is written again changes nothing, and neither does a task that runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

from spark_sink.errors import StreamError
from spark_sink.sink.write_options import WriteOptions

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_WHOLE = ("insert", "replace", "read")
# These change no document; the others of a collection's events do.
_HARMLESS = (
    "snapshotEnd", "heartbeat", "invalidate", "create", "createIndexes", "dropIndexes", "modify",
    "shardCollection", "refineCollectionShardKey", "reshardCollection",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A change of one document.

    namespace: database and collection; key: fields that find the document; token: of the change;
    document: all of it after the change; description: an updateDescription, where there is no
    document. Both None: the document is deleted.
    """

    namespace: tuple[str, str]
    key: Mapping[str, Any]
    token: Any
    document: Mapping[str, Any] | None = None
    description: Mapping[str, Any] | None = None

    @property
    def is_update(self) -> bool:
        """Whether the change needs the document from before it."""
        return self.description is not None


def change_of_event(row: Mapping[str, Any], options: WriteOptions) -> Change | None:
    """The change that a row of the source describes; None if it is of no document.

    row: with `token` and `event`. Raises StreamError for an event that the sink cannot apply.
    """
    event = bson.decode(row["event"], _CODEC)
    kind = event.get("operationType")
    if kind in _HARMLESS:
        return None
    if kind not in (*_WHOLE, "update", "delete"):
        if options.ignores_others:
            return None
        raise StreamError(
            f"the sink does not apply events of the kind {kind}: apply it yourself and leave such "
            "rows out (where op is not null), or set otherEvents=ignore"
        )
    if "documentKey" not in event or "splitEvent" in event:
        raise StreamError(
            "the sink needs whole events: leave stages that remove fields out of option 'pipeline' "
            "of the source, and begin no query within a large event"
        )
    ns, key, full = event["ns"], event["documentKey"], event.get("fullDocument")
    namespace = (options.database or ns["db"], options.collection or ns["coll"])
    if kind == "delete":
        return Change(namespace, key, row["token"])
    if full is not None:
        found = {name: _at(full, name) for name in options.keys}
        return Change(namespace, found, row["token"], document=full)
    description = event.get("updateDescription")
    if description is None:
        raise StreamError(
            "an event has neither fullDocument nor updateDescription: leave stages that remove "
            "them out of option 'pipeline' of the source"
        )
    return Change(namespace, key, row["token"], description=description)


def change_of_row(row: Mapping[str, Any], options: WriteOptions) -> Change:
    """The change that a row of other origin describes: its columns are the document.

    row: the key's fields, `token` and further fields; `op` "d" deletes. Raises StreamError.
    """
    document = {name: value for name, value in row.items() if name not in ("token", "op")}
    key = {name: document.get(name) for name in options.keys}
    if options.database is None or options.collection is None:
        raise StreamError("the rows name no collection: give the sink 'database' and 'collection'")
    namespace = (options.database, options.collection)
    if row["token"] is None or any(value is None for value in key.values()):
        raise StreamError(f"a row has no token, or no {' and '.join(options.keys)}: fill them in")
    if row.get("op") == "d":
        return Change(namespace, key, row["token"])
    return Change(namespace, key, row["token"], document=document)


@dataclass
class Portion:
    """Changes that are written together: those that matter of each document.

    A change that gives or deletes the whole document makes the earlier ones superfluous.
    """

    _changes: dict[Any, list[Change]] = field(default_factory=dict)
    size: int = 0

    def add(self, change: Change) -> None:
        """Add the next change."""
        self.size += 1
        identifier = bson.encode({"_": change.key.get("_id", dict(change.key))})
        kept = self._changes.setdefault((change.namespace, identifier), [])
        if kept and not _supersedes(change, kept[-1]):
            return
        if not change.is_update:
            kept.clear()
        kept.append(change)

    def rounds(self) -> Iterator[list[Change]]:
        """The changes in lists to be written one after the other: each has a document once."""
        waiting = [list(reversed(changes)) for changes in self._changes.values()]
        while waiting:
            yield [changes.pop() for changes in waiting]
            waiting = [changes for changes in waiting if changes]


def _supersedes(change: Change, last: Change) -> bool:
    """Whether a change comes after another one of the same document.

    A new shard key value moves a document: in one transaction it is deleted on one shard and
    inserted on another, and the insert may have the smaller token.
    """
    if not change.token > last.token:
        return False
    deleted = change.document is None and not change.is_update
    if deleted and last.document is not None and isinstance(change.token, str):
        same_time = change.token[:18] == str(last.token)[:18]
        moved = any(_at(last.document, name) != value for name, value in change.key.items())
        return not (same_time and moved)
    return True


def _at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def portions(changes: Iterable[Change], most: int) -> Iterator[Portion]:
    """Gather changes in portions of so many at most."""
    portion = Portion()
    for change in changes:
        portion.add(change)
        if portion.size >= most:
            yield portion
            portion = Portion()
    if portion.size:
        yield portion
