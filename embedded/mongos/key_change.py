"""A document whose shard key an update changes: it moves in one transaction.

As on real servers, the transaction has the session and number of the update, which must be a
retryable write: a delete on the old owner and an insert on the new one (docs/protocol.md#events).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.members import Member
from embedded.mongos.request import Request
from embedded.storage.updates import Update


def has_moved(request: Request) -> bool:
    """Return whether this retryable write has moved a document before."""
    if not request.retryable:
        return False
    lsid, number = request.command["lsid"], int(request.command["txnNumber"])
    return request.state.transactions.has_committed(lsid, number)


async def move_document(
    request: Request, collection: ShardedCollection, member: Member, statement: Mapping[str, Any]
) -> None:
    """Run an update statement of one document on ``member``, whose shard key changes.

    Raises:
        CommandError: the shards' errors; nothing has then changed.
    """
    query, name = statement["q"], request.collection
    reply = await request.send(member, {"find": name, "filter": query, "limit": 1})
    [before] = reply["cursor"]["firstBatch"]
    after = Update(statement["u"], query).apply(before).document
    owner = request.catalog.shard(collection.chunks.owner_of_document(after))
    table = request.state.transactions
    transaction = table.begin(request.command["lsid"], int(request.command["txnNumber"]), None)
    inner = replace(request, transaction=transaction)
    delete = {"q": {"_id": before["_id"]}, "limit": 1}
    try:
        await inner.send(member, {"delete": name, "deletes": [delete]}, write=True)
        await inner.send(owner, {"insert": name, "documents": [after]}, write=True)
        table.commit(transaction)
    finally:
        table.abort(transaction)
