"""The command hello and its older spelling."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from bson.int64 import Int64
from bson.timestamp import Timestamp

from embedded.access import logins
from embedded.access.users import UserName, Users
from embedded.client import Client
from embedded.commands.request import Request, command
from embedded.errors import CommandError
from embedded.member import Member
from embedded.storage.bson_values import Document
from shard_client.wire.authentication import MECHANISM
from shard_client.wire.compression import negotiate
from shard_client.wire.frames import MAX_DOCUMENT_SIZE, MAX_MESSAGE_SIZE, MAX_WRITE_BATCH_SIZE

_LONGEST_WAIT = 60.0


@command("hello")
async def hello(request: Request) -> Document:
    """Return this member's role and limits (docs/protocol.md#wire-protocol)."""
    return await _answer(request, "isWritablePrimary")


@command("isMaster", "ismaster")
async def is_master(request: Request) -> Document:
    """Return the reply to hello's older spelling."""
    return await _answer(request, "ismaster")


async def _answer(request: Request, primary_field: str) -> Document:
    mongod, given = request.mongod, request.command
    await _wait_for_change(request)
    last = mongod.oplog.last_ts or Timestamp(0, 0)
    last_date = datetime.fromtimestamp(last.time, UTC).replace(tzinfo=None)
    op_time = {"ts": last, "t": Int64(1)}
    host = f"{mongod.address[0]}:{mongod.address[1]}"
    reply: Document = {
        "topologyVersion": mongod.topology_version,
        "hosts": [host],
        "setName": mongod.name,
        "setVersion": 1,
        "me": host,
        "lastWrite": {
            "opTime": op_time,
            "lastWriteDate": last_date,
            "majorityOpTime": op_time,
            "majorityWriteDate": last_date,
        },
    }
    mongod.elections.describe(reply, primary_field, host)
    if mongod.role == "configsvr":
        reply["configsvr"] = 2
    return reply | hello_of_any_server(mongod, request.client, given) | {"readOnly": False}


def hello_of_any_server(mongod: Member, client: Client, command: Document) -> Document:
    """Return what a member and the mongos of its cluster both reply to a client's hello."""
    reply: Document = {"helloOk": True} if command.get("helloOk") else {}
    if compressors := negotiate(command.get("compression") or ()):
        reply["compression"] = compressors
    return reply | {
        "maxBsonObjectSize": MAX_DOCUMENT_SIZE,
        "maxMessageSizeBytes": MAX_MESSAGE_SIZE,
        "maxWriteBatchSize": MAX_WRITE_BATCH_SIZE,
        "localTime": mongod.now(),
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": client.connection_id,
        "minWireVersion": 0,
        "maxWireVersion": mongod.server_version.wire_version,
        **_about_logins(mongod.access.users, client, command),
    }


def _about_logins(users: Users, client: Client, command: Document) -> Document:
    """Return what a hello's reply says about logins; a speculative one that fails is left out."""
    reply: Document = {}
    if isinstance(named := command.get("saslSupportedMechs"), str):
        database, _, user = named.partition(".")
        if users.get(UserName(user, database)) is not None:
            reply["saslSupportedMechs"] = [MECHANISM]
    speculative = command.get("speculativeAuthenticate")
    if isinstance(speculative, dict) and "saslStart" in speculative:
        with suppress(CommandError):
            started = logins.start(users, client, str(speculative.get("db")), speculative)
            reply["speculativeAuthenticate"] = started
    return reply


async def _wait_for_change(request: Request) -> None:
    """Wait up to ``maxAwaitTimeMS`` milliseconds for this member's state to change."""
    version: Any = request.command.get("topologyVersion")
    wait = request.field("maxAwaitTimeMS", (int, float), 0) / 1000
    if version is None or not wait:
        return
    if version == request.mongod.topology_version:
        await request.mongod.elections.wait_for_change(min(wait, _LONGEST_WAIT))
