"""Operations that several servers run at the same time have one cluster time."""

import asyncio

from embedded.mongod import Mongod
from embedded.mongos.members import ClusterTime, Member, execute_on_all


def member(name: str, gossip: ClusterTime) -> Member:
    return Member(name, Mongod(name, "shardsvr", wall=lambda: 1000.0), gossip)


async def test_a_pending_no_op_does_not_separate_their_times() -> None:
    gossip = ClusterTime()
    members = [member(f"shard{number}", gossip) for number in range(3)]
    for each in members:
        await each.execute("db", {"create": "c"})
    # Already in the event loop's queue when the members are called.
    asyncio.get_running_loop().call_soon(members[1].mongod.append_noop, {"msg": "periodic noop"})
    await execute_on_all({each: {"drop": "c"} for each in members}, "db")
    assert len({each.mongod.oplog.last_ts for each in members}) == 1
