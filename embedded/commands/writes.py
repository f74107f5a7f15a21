"""The commands insert, update and delete."""

from collections.abc import Callable
from functools import partial
from typing import Any

import bson
from bson.objectid import ObjectId

from embedded.commands.matching import select
from embedded.commands.request import Request, command
from embedded.commands.write_statements import (
    Statements,
    take_turns,
    when_unlocked,
    writable_collection,
)
from embedded.errors import CommandError, ErrorCode, bad_value, failed_to_parse, shard_key_changed
from embedded.storage.bson_values import MISSING, Document, id_key
from embedded.storage.collection import Collection
from embedded.storage.queries import Matcher
from embedded.storage.updates import Update
from embedded.write_unit import Operation, WriteUnit
from shard_client.wire.frames import MAX_DOCUMENT_SIZE


def _batch(request: Request, name: str) -> list[Any]:
    """Return a write command's statements after checking its target and their number."""
    _ = request.ns
    statements = request.field(name, list, None)
    if statements is None:
        raise CommandError(
            ErrorCode.IDLFailedToParse,
            f"BSON field '{request.name}.{name}' is missing but a required field",
        )  # fmt: skip
    if not 1 <= len(statements) <= 100_000:
        raise CommandError(
            ErrorCode.InvalidLength,
            f"Write batch sizes must be between 1 and 100000. Got {len(statements)} operations.",
        )
    result: list[Any] = statements
    return result


def with_id(document: Document, new_id: Callable[[], ObjectId]) -> Document:
    """Return ``document`` with its ``_id`` first, or with a new ``_id`` if it has none.

    Raises:
        CommandError: 53 InvalidIdField if the ``_id`` is an array.
    """
    identifier = document.get("_id", MISSING)
    if identifier is MISSING:
        return {"_id": new_id(), **document}
    if isinstance(identifier, list):
        raise CommandError(
            53, "The '_id' value cannot be of type array", code_name="InvalidIdField"
        )
    if next(iter(document)) == "_id":
        return document
    return {"_id": identifier, **{name: value for name, value in document.items() if name != "_id"}}


@command("insert", in_transactions=True)
async def insert(request: Request) -> Document:
    """Insert documents."""
    documents = [_with_id_or_error(request, each) for each in _batch(request, "documents")]
    statements = Statements(request, len(documents))
    unit = request.unit
    count = 0
    if _insert_together(request, documents, statements):
        return statements.reply({"n": len(documents)})
    for index, document in enumerate(documents):
        await take_turns(index)
        if statements.repeated(index):
            count += 1
            continue
        try:
            await when_unlocked(partial(_insert, request, unit, document, statements.ids[index]))
        except CommandError as error:
            if statements.failed(index, error):
                break
            continue
        statements.made(index, {"n": 1})
        count += 1
    return statements.reply({"n": count})


def _with_id_or_error(request: Request, document: Document) -> Document | CommandError:
    """Return the document with an ``_id``, or the error that its statement reports."""
    try:
        return with_id(document, request.mongod.new_object_id)
    except CommandError as error:
        return error


def _insert_together(
    request: Request, documents: list[Document | CommandError], statements: Statements
) -> bool:
    """Insert several documents at once; return False if none was inserted, for whatever reason."""
    mongod = request.mongod
    valid = [each for each in documents if not isinstance(each, CommandError)]
    shares = mongod.server_version.shares_inserts and request.transaction is None
    if not shares or request.client.from_migrate or statements.begun:
        return False
    if len(documents) < 2 or len(valid) < len(documents):
        return False
    try:
        collection = writable_collection(request)
    except CommandError:
        return False  # the statement that fails reports it
    inserts = [Operation(collection, None, document) for document in valid]
    if not mongod.journal.insert_together(inserts, request.session_fields):
        return False
    for index in range(len(documents)):
        statements.made(index, {"n": 1})
    return True


def _insert(
    request: Request, unit: WriteUnit, document: Document | CommandError, statement: int
) -> None:
    collection = writable_collection(request)
    if isinstance(document, CommandError):
        raise document
    unit.write(Operation(collection, None, document), statement)


@command("update", in_transactions=True)
async def update(request: Request) -> Document:
    """Update, replace or upsert documents."""
    batch = _batch(request, "updates")
    statements = Statements(request, len(batch))
    matched = modified = 0
    upserted: list[Document] = []
    for index, statement in enumerate(batch):
        await take_turns(index)
        outcome = statements.repeated(index)
        if outcome is None:
            try:
                outcome = await _update(request, statement, statements.ids[index])
            except CommandError as error:
                if statements.failed(index, error):
                    break
                continue
            statements.made(index, outcome)
        matched += outcome["n"]
        modified += outcome["nModified"]
        if "upserted" in outcome:
            upserted.append({"index": index, "_id": outcome["upserted"]})
    reply: Document = {"n": matched}
    if upserted:
        reply["upserted"] = upserted
    return statements.reply(reply | {"nModified": modified})


async def _update(request: Request, statement: Document, number: int) -> Document:
    """Run one update statement; return n, nModified, and the ``_id`` of an upsert."""
    if not isinstance(statement.get("q"), dict) or "u" not in statement:
        raise failed_to_parse("an update statement requires 'q' and 'u'")
    matcher = Matcher(statement["q"])
    change = Update(statement["u"], statement["q"])
    multi = bool(statement.get("multi"))
    if multi and change.is_replacement:
        raise failed_to_parse("multi update is not supported for replacement-style update")
    upsert = bool(statement.get("upsert"))
    if not multi:
        return await when_unlocked(
            lambda: _update_first(request, matcher, change, number, upsert=upsert)
        )
    return await _update_many(request, matcher, change, number, upsert=upsert)


async def _update_many(
    request: Request, matcher: Matcher, change: Update, number: int, *, upsert: bool
) -> Document:
    unit, collection = request.unit, request.collection
    documents = list(select(unit.view(collection), matcher)) if collection is not None else []
    if not documents and upsert:
        return await when_unlocked(
            lambda: _update_first(request, matcher, change, number, upsert=True)
        )
    matched = modified = 0
    for done, document in enumerate(documents):
        await take_turns(done)
        assert collection is not None
        key = id_key(document["_id"])

        def one(key: Any = key, collection: Collection = collection) -> Document | None:
            current = unit.view(collection).get(key)
            if current is None or not matcher(current):
                return None
            return _change(unit, collection, current, change, number)

        outcome = await when_unlocked(one)
        if outcome is not None:
            matched += 1
            modified += outcome["nModified"]
    return {"n": matched, "nModified": modified}


def _update_first(
    request: Request, matcher: Matcher, change: Update, number: int, *, upsert: bool
) -> Document:
    """Update the first document that matches; with ``upsert``, insert one if none matches."""
    unit, collection = request.unit, request.collection
    first = None
    if collection is not None:
        first = next(select(unit.view(collection), matcher), None)
    if collection is not None and first is not None:
        return _change(unit, collection, first, change, number)
    if not upsert:
        return {"n": 0, "nModified": 0}
    collection = writable_collection(request)
    mongod = request.mongod
    document = change.upserted(mongod.new_object_id())
    document = with_id(document, mongod.new_object_id)
    unit.write(Operation(collection, None, document), number)
    return {"n": 1, "nModified": 0, "upserted": document["_id"]}


def _change(
    unit: WriteUnit, collection: Collection, document: Document, change: Update, number: int
) -> Document:
    """Update one document; return n and nModified."""
    updated = change.apply(document)
    if updated.o is None:
        return {"n": 1, "nModified": 0}
    if collection.document_key(document) != collection.document_key(updated.document):
        raise shard_key_changed()
    size = len(bson.encode(updated.document))
    if size > MAX_DOCUMENT_SIZE:
        raise CommandError(
            17419, f"Resulting document after update is larger than {MAX_DOCUMENT_SIZE}"
        )
    unit.write(Operation(collection, document, updated.document, updated.o), number)
    return {"n": 1, "nModified": 1}


@command("delete", in_transactions=True)
async def delete(request: Request) -> Document:
    """Delete documents."""
    batch = _batch(request, "deletes")
    statements = Statements(request, len(batch))
    count = 0
    for index, statement in enumerate(batch):
        await take_turns(index)
        outcome = statements.repeated(index)
        if outcome is None:
            try:
                outcome = await _delete(request, statement, statements.ids[index])
            except CommandError as error:
                if statements.failed(index, error):
                    break
                continue
            statements.made(index, outcome)
        count += outcome["n"]
    return statements.reply({"n": count})


async def _delete(request: Request, statement: Document, number: int) -> Document:
    if not isinstance(statement.get("q"), dict):
        raise failed_to_parse("a delete statement requires 'q'")
    limit = statement.get("limit")
    if limit not in (0, 1):
        raise bad_value(f"The limit field in delete objects must be 0 or 1. Got {limit}")
    matcher = Matcher(statement["q"])
    unit, collection = request.unit, request.collection
    if collection is None:
        return {"n": 0}

    def first() -> bool:
        document = next(select(unit.view(collection), matcher), None)
        if document is not None:
            unit.write(Operation(collection, document, None), number)
        return document is not None

    if limit == 1:
        return {"n": int(await when_unlocked(first))}
    count = 0
    for done, document in enumerate(list(select(unit.view(collection), matcher))):
        await take_turns(done)
        key = id_key(document["_id"])

        def one(key: Any = key) -> bool:
            current = unit.view(collection).get(key)
            if current is None or not matcher(current):
                return False
            unit.write(Operation(collection, current, None), number)
            return True

        count += await when_unlocked(one)
    return {"n": count}
