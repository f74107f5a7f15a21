"""insert, update and delete, sent to the shards that own the documents."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from bson import ObjectId

from embedded.errors import CommandError, ErrorCode, shard_key_changed
from embedded.mongos.bulk import BulkWrite, batches
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.request import Placement, RoutedRequest
from embedded.mongos.shards import Shard, raise_write_error
from embedded.mongos.targeting import targets_of_delete, targets_of_update
from embedded.storage.bson_values import Document
from embedded.storage.updates import Update


async def insert(request: RoutedRequest) -> Document:
    """Insert documents, each on its owner; an ordered insert stops at its first error.

    Raises:
        CommandError: a shard's error for the whole command.
    """
    bulk = BulkWrite(request, "documents")
    bulk.statements = [_with_id(document) for document in bulk.statements]
    async with request.placement_for_write() as placement:
        owners = [_owner(bulk, placement, position) for position in range(len(bulk.statements))]
        for shard, positions in batches(owners):
            if shard is not None:
                await bulk.send([shard], positions)
            if bulk.ordered and any(error["index"] in positions for error in bulk.errors):
                break
    if bulk.ordered:
        bulk.errors = sorted(bulk.errors, key=lambda error: error["index"])[:1]
    return bulk.reply()


async def update(request: RoutedRequest) -> Document:
    """Update documents on their shards.

    Raises:
        CommandError: an error for the whole command.
    """
    return await _one_by_one(BulkWrite(request, "updates"), _update_statement)


async def delete(request: RoutedRequest) -> Document:
    """Delete documents on their shards.

    Raises:
        CommandError: an error for the whole command.
    """
    return await _one_by_one(BulkWrite(request, "deletes"), _delete_statement)


async def _one_by_one(
    bulk: BulkWrite, run: Callable[[BulkWrite, Placement, int], Awaitable[None]]
) -> Document:
    request = bulk.request
    for position, statement in enumerate(bulk.statements):
        creates = statement.get("upsert")
        async with request.placement_for_write() if creates else request.placement() as placement:
            try:
                if placement is not None:
                    await run(bulk, placement, position)
            except CommandError as error:
                if request.transaction is not None:
                    raise
                bulk.add_error(error, position)
        if bulk.errors and bulk.ordered:
            break
    return bulk.reply()


async def _update_statement(bulk: BulkWrite, placement: Placement, position: int) -> None:
    request, statement, earlier = bulk.request, bulk.statements[position], len(bulk.errors)
    if placement.sharded is None:
        await bulk.send([placement.primary], [position])
        return
    shards = request.catalog.named(targets_of_update(placement.sharded, statement))
    await bulk.send(shards, [position])
    codes = [error["code"] for error in bulk.errors[earlier:]]
    if len(shards) == 1 and request.retryable and codes == [shard_key_changed().code]:
        del bulk.errors[earlier:]
        if len(bulk.statements) > 1:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "Document shard key value updates that cause the doc to move shards must be sent "
                "with write batch of size 1",
            )
        moved = int(await _move_document(request, placement.sharded, shards[0], statement))
        bulk.add({"n": moved, "nModified": moved}, [position])


async def _move_document(
    request: RoutedRequest,
    collection: ShardedCollection,
    donor: Shard,
    statement: Mapping[str, Any],
) -> bool:
    """Run an update of one document on ``donor``, whose shard key changes.

    As on real servers, the document moves in a transaction of the update's session and number: a
    delete on the old owner and an insert on the new one (docs/protocol.md#events). Shards refuse a
    retry of the update, because its number is a transaction's. A real server updates a document in
    place if the shard of its new key has it already.

    Returns False if no document matches any more.

    Raises:
        CommandError: the shards' errors; nothing has then changed.
    """
    query, name = statement["q"], request.collection
    table = request.state.transactions
    transaction = table.begin(request.command["lsid"], int(request.command["txnNumber"]), None)
    inner = replace(request, transaction=transaction)
    try:
        reply = await inner.send(donor, {"find": name, "filter": query, "limit": 1})
        before = next(iter(reply["cursor"]["firstBatch"]), None)
        if before is None:
            return False
        after = Update(statement["u"], query).apply(before).document
        recipient = request.catalog.shard(collection.chunks.owner_of_document(after))
        delete = {"q": {"_id": before["_id"]}, "limit": 1}
        for shard, write in (
            (donor, {"delete": name, "deletes": [delete]}),
            (recipient, {"insert": name, "documents": [after]}),
        ):
            raise_write_error(await inner.send(shard, write, write=True))
        table.commit(transaction)
        return True
    finally:
        table.abort(transaction)


async def _delete_statement(bulk: BulkWrite, placement: Placement, position: int) -> None:
    shards = [placement.primary]
    if placement.sharded is not None:
        targets = targets_of_delete(placement.sharded, bulk.statements[position])
        shards = bulk.request.catalog.named(targets)
    await bulk.send(shards, [position])


def _owner(bulk: BulkWrite, placement: Placement, position: int) -> Shard | None:
    if placement.sharded is None:
        return placement.primary
    try:
        owner = placement.sharded.chunks.owner_of_document(bulk.statements[position])
    except CommandError as error:
        bulk.add_error(error, position)
        return None
    return bulk.request.catalog.shard(owner)


def _with_id(document: Document) -> Document:
    return document if "_id" in document else {"_id": ObjectId(), **document}
