"""Conversion of one oplog operation to one change event (docs/protocol.md#events)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from embedded.change_streams.logged_operations import LoggedOperation
from embedded.change_streams.oplog_filter import NOOP_EVENTS, split_ns
from embedded.change_streams.request import StreamRequest
from embedded.change_streams.tokens import event_token
from embedded.change_streams.update_description import describe_update
from embedded.errors import CommandError, ErrorCode
from shard_client.bson.resume_token import ResumeToken
from shard_client.bson.values import MalformedValueError

_CLASSIC: Final = frozenset(
    {"insert", "update", "replace", "delete", "drop", "rename", "dropDatabase"}
)
"""The operation types whose version 1 tokens hold only the document key."""

_HEAD_OF_WRAPPER: Final = 6
"""Bytes before the value in a document that consists of one field with an empty name."""


@dataclass(slots=True)
class ChangeEvent:
    """An event inside a stream.

    ``document`` is the event for the client, and ``token`` its resume token. The client's pipeline
    may change ``document`` but not the other fields.
    """

    document: dict[str, Any]
    token: ResumeToken
    operation: LoggedOperation

    @property
    def operation_type(self) -> str:
        """The event's operationType, before the client's pipeline."""
        kind: str = self.document["operationType"]
        return kind


@dataclass(slots=True)
class _Draft:
    """The parts of an event that depend on its kind. None means that the field is absent."""

    operation_type: str
    database: str
    collection: str
    document_key: Mapping[str, Any] | None = None
    full_document: Mapping[str, Any] | None = None
    description: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    state_before: Mapping[str, Any] | None = None
    to: Mapping[str, Any] | None = None
    from_view: bool = False
    ns_type: str = "collection"


class EventMaker:
    """Makes the events of one stream from operations.

    ``version`` is the version of new tokens. Events up to ``start`` keep the version of the
    client's token, because they are compared with it.
    """

    def __init__(self, request: StreamRequest, start: ResumeToken, version: int) -> None:
        self._request = request
        self._start = start
        self._version = version
        self._raw_updates = "showRawUpdateDescription" in request.flags

    def event(self, operation: LoggedOperation) -> ChangeEvent:
        """Return the event of an operation that the stream's filter accepted.

        Raises:
            CommandError: the operation has a form that has no change event.
        """
        draft = self._draft(operation.entry)
        token = self._token(operation, draft)
        document: dict[str, Any] = {}
        if draft.to is not None:
            document["to"] = draft.to
        if operation.txn_op_index is not None:
            if operation.txn_number is not None:
                document["txnNumber"] = operation.txn_number
            if operation.lsid is not None:
                document["lsid"] = operation.lsid
        document["_id"] = token.document
        document["operationType"] = draft.operation_type
        document["clusterTime"] = operation.ts
        uuid = operation.entry.get("ui")
        if self._request.expanded and uuid is not None and not draft.from_view:
            document["collectionUUID"] = uuid
        document["wallTime"] = operation.wall
        if draft.full_document is not None:
            document["fullDocument"] = draft.full_document
        elif draft.operation_type == "update" and self._request.full_document != "default":
            document["fullDocument"] = None
        document["ns"] = _namespace(draft.database, draft.collection)
        self._finish(document, draft)
        return ChangeEvent(document, token, operation)

    def _finish(self, document: dict[str, Any], draft: _Draft) -> None:
        if draft.operation_type == "create" and self._version >= 2:
            document["nsType"] = draft.ns_type
        if draft.document_key is not None:
            document["documentKey"] = draft.document_key
        if self._request.expanded and draft.description is not None:
            document["operationDescription"] = draft.description
        if draft.update is not None:
            name = "rawUpdateDescription" if self._raw_updates else "updateDescription"
            document[name] = draft.update
        if draft.state_before is not None:
            document["stateBeforeChange"] = draft.state_before

    def _token(self, operation: LoggedOperation, draft: _Draft) -> ResumeToken:
        index = operation.txn_op_index or 0
        newer = operation.ts > self._start.cluster_time or index > self._start.txn_op_index
        version = self._version if newer else self._start.version
        identifier: Mapping[str, Any] | None
        if draft.operation_type in _CLASSIC and version <= 1:
            identifier = draft.document_key
        else:
            identifier = {"operationType": draft.operation_type}
            if draft.document_key is not None:
                identifier["documentKey"] = draft.document_key
            elif draft.description is not None:
                identifier["operationDescription"] = draft.description
        uuid = operation.entry.get("ui")
        try:
            return event_token(
                operation.ts,
                version,
                identifier,
                txn_op_index=index,
                uuid=None if uuid is None else uuid.as_uuid(),
            )
        except MalformedValueError as error:
            raise CommandError(error.code, str(error), code_name="NotImplemented") from None

    def _draft(self, entry: Mapping[str, Any]) -> _Draft:
        database, collection = split_ns(entry["ns"])
        kind = entry["op"]
        if kind == "c":
            return _of_command(database, entry)
        if kind == "n":
            return _of_noop(database, collection, entry["o2"])
        if collection == "system.views" and self._request.collection is None:
            return _of_view(kind, entry["o"])
        if kind == "i":
            key = entry.get("o2") or {"_id": entry["o"].get("_id")}
            return _Draft("insert", database, collection, key, entry["o"])
        if kind == "d":
            return _Draft("delete", database, collection, entry["o"])
        return self._of_update(database, collection, entry)

    def _of_update(self, database: str, collection: str, entry: Mapping[str, Any]) -> _Draft:
        change = entry["o"]
        if change.get("$v") != 2:
            if "$v" in change or "_id" not in change:
                raise CommandError(
                    6741200, f"Unsupported or missing oplog version, $v: {change.get('$v')}"
                )
            return _Draft("replace", database, collection, entry["o2"], change)
        update = change
        if not self._raw_updates:
            paths = self._request.expanded and self._version >= 2
            update = describe_update(change["diff"], disambiguate=paths)
        return _Draft("update", database, collection, entry["o2"], update=update)


def encode_event(document: Mapping[str, Any]) -> bytes:
    """Return an event as BSON in its own field order, even if ``_id`` is not the first field."""
    if next(iter(document), "_id") == "_id":
        return bson.encode(document)
    return bson.encode({"": document})[_HEAD_OF_WRAPPER:-1]


def invalidate_after(event: ChangeEvent) -> ChangeEvent:
    """Return the invalidate that follows ``event``."""
    token = event.token.token_of_invalidate()
    document = {
        "_id": token.document,
        "operationType": "invalidate",
        "clusterTime": event.document["clusterTime"],
        "wallTime": event.document["wallTime"],
    }
    return ChangeEvent(document, token, event.operation)


def _namespace(database: str, collection: str) -> dict[str, str]:
    return {"db": database, "coll": collection} if collection else {"db": database}


def _without(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _of_command(database: str, entry: Mapping[str, Any]) -> _Draft:
    command = entry["o"]
    name = next(iter(command))
    if name == "dropDatabase":
        return _Draft("dropDatabase", database, "")
    if name == "renameCollection":
        return _of_rename(command)
    draft = _Draft("", database, command[name])
    if name == "drop":
        draft.operation_type = "drop"
    elif name == "create":
        draft.operation_type = "create"
        draft.description = _without(command, name)
    elif name == "createIndexes":
        draft.operation_type = "createIndexes"
        draft.description = {"indexes": [_without(command, name)]}
    elif name == "commitIndexBuild":
        draft.operation_type = "createIndexes"
        draft.description = {"indexes": command["indexes"]}
    elif name == "dropIndexes":
        draft.operation_type = "dropIndexes"
        draft.description = {"indexes": [_without(entry.get("o2") or {}, name)]}
    elif name == "collMod":
        draft.operation_type = "modify"
        draft.description = _without(command, name)
        draft.state_before = _state_before(entry.get("o2") or {})
    else:
        raise CommandError(ErrorCode.InternalError, f"no change event for the oplog command {name}")
    return draft


def _state_before(before: Mapping[str, Any]) -> dict[str, Any]:
    named = (("collectionOptions", "collectionOptions_old"), ("indexOptions", "indexOptions_old"))
    return {name: before[source] for name, source in named if source in before}


def _of_rename(command: Mapping[str, Any]) -> _Draft:
    to = _namespace(*split_ns(command["to"]))
    description = _without(command, "renameCollection", "stayTemp") | {"to": to}
    database, collection = split_ns(command["renameCollection"])
    return _Draft("rename", database, collection, description=description, to=to)


def _of_noop(database: str, collection: str, what: Mapping[str, Any]) -> _Draft:
    for name in NOOP_EVENTS:
        if name in what:
            return _Draft(name, database, collection, description=_without(what, name))
    raise CommandError(
        ErrorCode.InternalError, f"no change event for the no-op {next(iter(what), '')}"
    )


def _of_view(kind: str, view: Mapping[str, Any]) -> _Draft:
    """Return the DDL event of a change to a view, which is a document of ``system.views``."""
    database, collection = split_ns(view["_id"])
    description = None if kind == "d" else _without(view, "_id")
    operation_type = {"i": "create", "u": "modify", "d": "drop"}[kind]
    draft = _Draft(operation_type, database, collection, description=description, from_view=True)
    draft.ns_type = "view"
    return draft
