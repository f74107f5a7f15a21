"""A document whose shard key an update changes: it moves in one transaction.

As on real servers, the transaction has the session and number of the update, which must be a
retryable write: a delete on the old owner and an insert on the new one (docs/protocol.md#events).
The servers refuse a retry of the update, because its number is a transaction's. A real server
updates a document in place if the shard of its new key has it already.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.request import RoutedRequest
from embedded.mongos.shards import Shard, raise_write_error
from embedded.storage.updates import Update


async def move_document(
    request: RoutedRequest,
    collection: ShardedCollection,
    donor: Shard,
    statement: Mapping[str, Any],
) -> bool:
    """Run an update statement of one document on ``donor``, whose shard key changes.

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
