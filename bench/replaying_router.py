"""`mergerouter` for replaying shards, whose collection it lists itself: they have no mongos."""

from bench.events import NAMESPACE
from router.cli import main
from router.commands.call import Call
from router.commands.command import answers
from router.commands.reply_bodies import Answer


@answers("listDatabases", help="list the database of the events")
async def _databases(_: Call) -> Answer:
    return Answer({"databases": [{"name": NAMESPACE["db"], "sizeOnDisk": 1, "empty": False}]})


@answers("listCollections", help="list the collection of the events")
async def _collections(_: Call) -> Answer:
    collections = [{"name": NAMESPACE["coll"], "type": "collection"}]
    return Answer(
        {"cursor": {"id": 0, "ns": "bench.$cmd.listCollections", "firstBatch": collections}}
    )


if __name__ == "__main__":
    main()
