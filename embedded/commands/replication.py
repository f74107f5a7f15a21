"""The replica set, which has one member, and notes in the oplog.

Source: docs/protocol.md#sharded-cluster (appendOplogNote, idle members).
"""

from bson.int64 import Int64
from bson.timestamp import Timestamp

from embedded.commands.request import Request, command
from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError


@command("replSetGetStatus")
async def status(request: Request) -> Document:
    """Return the set's status."""
    mongod = request.mongod
    last = {"ts": mongod.oplog.last_ts or Timestamp(0, 0), "t": Int64(1)}
    host, port = mongod.address
    member: Document = {
        "_id": 0,
        "name": f"{host}:{port}",
        "health": 1.0,
        "state": 1,
        "stateStr": "PRIMARY",
        "optime": last,
        "self": True,
    }
    return {
        "set": mongod.set_name,
        "date": mongod.now(),
        "myState": 1,
        "term": Int64(1),
        "optimes": {"lastCommittedOpTime": last, "appliedOpTime": last, "durableOpTime": last},
        "members": [member],
    }


@command("replSetGetConfig")
async def configuration(request: Request) -> Document:
    """Return the set's configuration."""
    host, port = request.mongod.address
    config: Document = {
        "_id": request.mongod.set_name,
        "version": 1,
        "term": 1,
        "members": [{"_id": 0, "host": f"{host}:{port}", "priority": 1, "votes": 1}],
        "protocolVersion": Int64(1),
        "settings": {"electionTimeoutMillis": 10_000},
    }
    if request.mongod.role == "configsvr":
        config["configsvr"] = True
    return {"config": config}


@command("replSetInitiate")
async def initiate(_request: Request) -> Document:
    """Refuse, because the set is initiated from the start."""
    raise CommandError(23, "already initialized", code_name="AlreadyInitialized")


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
            209,
            f"Requested maxClusterTime {wanted} is less or equal to the last primary OpTime {last}",
            code_name="StaleClusterTime",
        )
    mongod.append_noop(data)
    return {}
