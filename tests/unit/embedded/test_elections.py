"""A member that steps down, is elected, and restarts with its data."""

import asyncio

import pytest

from embedded.clients import Client
from embedded.mongod import Mongod
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Connection
from tests.harness.until import PATIENCE

HELLO = {"hello": 1}
INSERT = {"insert": "c", "documents": [{"_id": 1}]}
WATCH = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}


async def test_a_secondary_refuses_writes_and_plain_reads():
    member = Mongod("rs")
    await member.start()
    client = Client()
    opened = await member.run_command("db", dict(WATCH), client)
    member.step_down()
    hello = await member.run_command("admin", dict(HELLO), client)
    assert (hello["isWritablePrimary"], hello["secondary"]) == (False, True)
    assert "primary" not in hello
    assert (await member.run_command("db", dict(INSERT), client))["code"] == 10107
    assert (await member.run_command("db", dict(WATCH), client))["code"] == 13435
    reading = {**WATCH, "$readPreference": {"mode": "secondary"}}
    assert (await member.run_command("db", reading, client))["ok"] == 1.0
    more = {"getMore": opened["cursor"]["id"], "collection": "$cmd.aggregate", "maxTimeMS": 1}
    assert (await member.run_command("db", more, client))["ok"] == 1.0
    member.step_up()
    again = await member.run_command("admin", dict(HELLO), client)
    assert again["isWritablePrimary"] is True
    assert (await member.run_command("db", dict(INSERT), client))["ok"] == 1.0
    await member.stop()


async def test_an_election_ends_a_waiting_hello():
    member = Mongod("rs")
    await member.start()
    first = await member.run_command("admin", dict(HELLO), Client())
    waiting = {**HELLO, "topologyVersion": first["topologyVersion"], "maxAwaitTimeMS": 60_000}
    answer = asyncio.create_task(member.run_command("admin", waiting, Client()))
    await asyncio.sleep(0)
    member.step_down(kill_cursors=True)
    told = await asyncio.wait_for(answer, PATIENCE)
    assert told["secondary"] is True
    assert told["topologyVersion"]["counter"] > first["topologyVersion"]["counter"]
    ids = []
    for _ in range(2):
        member.step_up()
        ids.append((await member.run_command("admin", dict(HELLO), Client()))["electionId"])
    assert ids[0] < ids[1]
    await member.stop()


async def test_a_restart_keeps_address_and_data_but_no_cursor():
    member = Mongod("rs")
    await member.start()
    connection = await Connection.open(member.address, timeout=5)
    await connection.command("db", INSERT, timeout=5)
    cursor = (await connection.command("db", WATCH, timeout=5))["cursor"]
    before = member.address
    await member.restart(0.0)
    with pytest.raises(NetworkError):
        await connection.command("db", {"ping": 1}, timeout=5)
    assert member.address == before
    connection = await Connection.open(before, timeout=5)
    found = await connection.command("db", {"find": "c"}, timeout=5)
    assert found["cursor"]["firstBatch"] == [{"_id": 1}]
    more = {"getMore": cursor["id"], "collection": "$cmd.aggregate"}
    with pytest.raises(CommandError) as error:
        await connection.command("db", more, timeout=5)
    assert error.value.code == 43
    connection.abort()
    await member.stop()
