"""Updates that change a document's shard key, and so may move it to another shard.

The move is a transaction with the session and number of the update itself: a delete on the old
owner and an insert on the new one (docs/protocol.md#events).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bson import ObjectId

from embedded.errors import write_conflict
from embedded.mongos.bulk import BulkResult
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.members import Member, replies_of
from embedded.mongos.request import Placement, Request
from embedded.mongos.statements import send_statement
from embedded.mongos.targeting import key_changed, targets_of_update
from embedded.storage.bson_values import Document
from embedded.storage.updates import Update
from shard_client.errors import CommandError

Found = tuple[Member, Document]
"""A document and the shard that holds it."""


async def update_one_with_its_key(
    request: Request,
    placement: Placement,
    statement: Mapping[str, Any],
    position: int,
    result: BulkResult,
) -> None:
    """Run an update of one document, which may move the document to another shard.

    Raises:
        CommandError: 20 IllegalOperation if the key changes outside of a transaction and of a
            retryable write; the errors of targeting and of the shards.
    """
    collection = placement.sharded
    assert collection is not None
    repeated = reply_of_repeated_move(request)
    if repeated is not None:
        result.add(repeated, [position])
        return
    async with request.hold(placement.namespace):
        targets = targets_of_update(collection, statement)
        members = [shard for shard in request.catalog.shards if shard.id in targets]
        found = await find_one(request, members, statement["q"])
        change = Update(statement["u"], statement["q"], statement.get("arrayFilters", ()))
        if found is None:
            if statement.get("upsert"):
                document = change.upserted(request.now(), ObjectId())
                owner = request.catalog.shard(collection.chunks.owner_of_document(document))
                if owner not in members:
                    await _insert_on(request, owner, document)
                    result.add(
                        {"n": 1, "upserted": [{"index": 0, "_id": document["_id"]}]}, [position]
                    )
                    return
        else:
            after = change.apply(found[1], request.now()).document
            if new_owner(request, collection, found, after) is not None:
                reply = {"n": 1, "nModified": 1}
                await move_document(request, collection, found, after, reply)
                result.add(reply, [position])
                return
        await send_statement(request, placement, targets, statement, position, result)


def new_owner(
    request: Request, collection: ShardedCollection, found: Found, after: Document
) -> Member | None:
    """Return the shard to which a changed document moves, ``None`` if it stays.

    Raises:
        CommandError: 20 IllegalOperation for a changed key outside of a transaction and of a
            retryable write.
    """
    member, before = found
    if not key_changed(collection, before, after):
        return None
    if request.transaction is None and not request.retryable:
        raise CommandError(
            20, "Must run update to shard key field in a multi-statement transaction or with "
            "retryWrites: true.", code_name="IllegalOperation",
        )  # fmt: skip
    owner = request.catalog.shard(collection.chunks.owner_of_document(after))
    return None if owner is member else owner


def reply_of_repeated_move(request: Request) -> Document | None:
    """Return the stored reply of a retried write that moved a document, else ``None``."""
    if not request.retryable:
        return None
    number = int(request.command["txnNumber"])
    return request.state.transactions.reply_of(request.command["lsid"], number)


async def move_document(
    request: Request, collection: ShardedCollection, found: Found, after: Document, reply: Document
) -> None:
    """Delete ``found`` on its shard and insert ``after`` on its owner, in one transaction.

    Args:
        request: the command.
        collection: the sharded collection.
        found: the document before the change, and its shard.
        after: the changed document.
        reply: the command's reply, which a retry receives again.

    Raises:
        CommandError: 72 InvalidOptions for one of several statements; 112 WriteConflict if the
            document is gone; the shards' errors. Nothing has then changed.
    """
    if len(request.command.get("updates", ())) > 1:
        raise CommandError(
            72,
            "Document shard key value updates that cause the doc to move shards must be sent with "
            "write batch of size 1",
            code_name="InvalidOptions",
        )
    owner = request.catalog.shard(collection.chunks.owner_of_document(after))
    if request.transaction is not None:
        await _delete_and_insert(request, collection, found, owner, after)
        return
    transactions = request.state.transactions
    transaction = transactions.begin(
        request.command["lsid"], int(request.command["txnNumber"]), None
    )
    inner = replace(request, transaction=transaction)
    try:
        await _delete_and_insert(inner, collection, found, owner, after)
        transaction.reply = reply
        transactions.commit(transaction)
    finally:
        transactions.abort(transaction)


async def find_one(
    request: Request, members: Iterable[Member], filter_: Mapping[str, Any], sort: Any = None
) -> Found | None:
    """Return the first matching document on any of ``members``, and its shard."""
    command: Document = {"find": request.collection, "filter": filter_, "limit": 1}
    if sort:
        command["sort"] = sort
    outcomes = await request.send_all(dict.fromkeys(members, command))
    for member, reply in replies_of(outcomes).items():
        for document in reply["cursor"]["firstBatch"]:
            return member, document
    return None


async def _delete_and_insert(
    request: Request, collection: ShardedCollection, found: Found, owner: Member, after: Document
) -> None:
    member, before = found
    query = {**collection.key.key_fields(before), "_id": before["_id"]}
    name = request.collection
    reply = await request.send(
        member, {"delete": name, "deletes": [{"q": query, "limit": 1}]}, write=True
    )
    if reply.get("n") != 1:
        raise write_conflict()
    await _insert_on(request, owner, after)


async def _insert_on(request: Request, owner: Member, document: Document) -> None:
    reply = await request.send(
        owner, {"insert": request.collection, "documents": [document]}, write=True
    )
    for failure in reply.get("writeErrors", ()):
        extra = {k: v for k, v in failure.items() if k not in ("index", "code", "errmsg")}
        raise CommandError(failure["code"], failure["errmsg"], extra=extra)
