"""Notes in the oplog.

Source: docs/protocol.md#sharded-cluster (appendOplogNote, idle members).
"""

from bson.timestamp import Timestamp

from embedded.commands.request import Request, command
from embedded.errors import CommandError, ErrorCode
from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document


@command("appendOplogNote")
async def append_note(request: Request) -> Document:
    """Log a no-op.

    Raises:
        CommandError: 209 StaleClusterTime if the oplog has already reached ``maxClusterTime``.
    """
    mongod = request.mongod
    data = request.field("data", dict, {})
    wanted = request.field("maxClusterTime", Timestamp, None)
    last = mongod.oplog.last_ts
    if wanted is not None and last is not None and as_ordinal(last) >= as_ordinal(wanted):
        raise CommandError(
            ErrorCode.StaleClusterTime,
            f"Requested maxClusterTime {wanted} is less or equal to the last primary OpTime {last}",
        )
    mongod.append_noop(data)
    return {}
