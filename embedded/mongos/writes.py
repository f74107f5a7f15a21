"""insert, update and delete; each statement is sent to the shards that own its documents."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bson import ObjectId

from embedded.errors import CommandError, ErrorCode, shard_key_changed
from embedded.mongos.bulk import BulkResult, batches, picked
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.key_change import move_document
from embedded.mongos.members import Member
from embedded.mongos.request import Placement, Request
from embedded.mongos.statements import bulk_command, send_statement
from embedded.mongos.targeting import targets_of_delete, targets_of_update
from embedded.storage.bson_values import Document


async def insert(request: Request) -> Document:
    """Insert documents, each on its owner; an ordered insert stops at its first error.

    Raises:
        CommandError: a shard's error for the whole command.
    """
    documents = [_with_id(document) for document in request.field("documents", list)]
    ordered = bool(request.command.get("ordered", True))
    result = BulkResult()
    async with request.placement_for_write() as placement:
        owners = [_owner(request, placement, d, i, result) for i, d in enumerate(documents)]

        def command(positions: list[int]) -> Document:
            return bulk_command(
                request, "documents", picked(documents, positions), positions, ordered=ordered
            )

        for member, positions in batches(owners):
            if member is not None:
                result.add(await request.send(member, command(positions), write=True), positions)
            if ordered and any(error["index"] in positions for error in result.errors):
                break
    if ordered:
        result.errors = sorted(result.errors, key=lambda error: error["index"])[:1]
    return result.reply()


async def update(request: Request) -> Document:
    """Update documents on their shards.

    Raises:
        CommandError: an error for the whole command.
    """
    return await _one_by_one(request, "updates", _update_statement, modified=0)


async def delete(request: Request) -> Document:
    """Delete documents on their shards.

    Raises:
        CommandError: an error for the whole command.
    """
    return await _one_by_one(request, "deletes", _delete_statement, modified=None)


Statement = Mapping[str, Any]
Runner = Callable[[Request, Placement, Statement, int, BulkResult], Awaitable[None]]


async def _one_by_one(
    request: Request, field: str, run: Runner, *, modified: int | None
) -> Document:
    statements: list[Document] = request.field(field, list)
    ordered = bool(request.command.get("ordered", True))
    result = BulkResult(modified=modified)
    for position, statement in enumerate(statements):
        creates = statement.get("upsert")
        async with request.placement_for_write() if creates else request.placement() as placement:
            try:
                if placement is not None:
                    await run(request, placement, statement, position, result)
            except CommandError as error:
                if request.transaction is not None:
                    raise
                result.add_error(error, position)
        if result.errors and ordered:
            break
    return result.reply()


async def _update_statement(
    request: Request, placement: Placement, statement: Statement, position: int, result: BulkResult
) -> None:
    collection = placement.sharded
    targets = targets_of_update(collection, statement) if collection else None
    earlier = len(result.errors)
    await send_statement(request, placement, targets, statement, position, result)
    codes = [error["code"] for error in result.errors[earlier:]]
    if collection is None or not request.retryable or codes != [shard_key_changed().code]:
        return
    if targets is not None and len(targets) == 1:
        [target] = targets
        del result.errors[earlier:]
        if len(request.command["updates"]) > 1:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "Document shard key value updates that cause the doc to move shards must be sent "
                "with write batch of size 1",
            )
        moved = await move_document(request, collection, request.catalog.shard(target), statement)
        result.add({"n": int(moved), "nModified": int(moved)}, [position])


async def _delete_statement(
    request: Request, placement: Placement, statement: Statement, position: int, result: BulkResult
) -> None:
    collection = placement.sharded
    targets = targets_of_delete(collection, statement) if collection else None
    await send_statement(request, placement, targets, statement, position, result)


def _owner(
    request: Request, placement: Placement, document: Document, position: int, result: BulkResult
) -> Member | None:
    collection: ShardedCollection | None = placement.sharded
    if collection is None:
        return placement.primary
    try:
        return request.catalog.shard(collection.chunks.owner_of_document(document))
    except CommandError as error:
        result.add_error(error, position)
        return None


def _with_id(document: Document) -> Document:
    return document if "_id" in document else {"_id": ObjectId(), **document}
