"""A change stream driven by raw commands, so that tests see whole replies."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from bson import Int64, Timestamp
from bson.codec_options import CodecOptions
from pymongo.errors import OperationFailure

from shard_client.bson.resume_token import cluster_time_of
from tests.harness.clusters import Client
from tests.harness.until import Deadline

Event = dict[str, Any]
CLUSTER = {"allChangesForCluster": True}


def opening(options: Mapping[str, Any], *stages: Mapping[str, Any], **fields: Any) -> Any:
    """Return an aggregate command that opens a change stream on ``a``."""
    return {
        "aggregate": fields.pop("aggregate", "a"),
        "pipeline": [{"$changeStream": dict(options)}, *stages],
        "cursor": {},
        **fields,
    }


class Stream:
    """An open change stream; ``with`` closes it.

    Args:
        client: a client of the router (or of a shard).
        database: the database's name.
        target: a collection's name, or 1.
        options: the options of ``$changeStream``.
        stages: the stages after ``$changeStream``.
        cursor: the command's ``cursor``.
        codec: how replies are decoded.
        fields: further fields of the aggregate command.
    """

    def __init__(
        self,
        client: Client,
        database: str,
        target: str | int = 1,
        options: Mapping[str, Any] | None = None,
        stages: list[Mapping[str, Any]] | None = None,
        *,
        cursor: Mapping[str, Any] | None = None,
        codec: CodecOptions[Any] | None = None,
        **fields: Any,
    ) -> None:
        self.client = client
        self.database = database
        self.session = client.start_session()
        self._codec = codec
        self.collection = target if isinstance(target, str) else "$cmd.aggregate"
        self.events: list[Event] = []
        self.pbrts: list[str] = []
        command = {
            "aggregate": target,
            "pipeline": [{"$changeStream": {**(options or {})}}, *(stages or [])],
            "cursor": dict(cursor or {}),
            **fields,
        }
        self._take(self._answer(command))

    def _answer(self, command: Mapping[str, Any]) -> Any:
        database = self.client[self.database]
        return database.command(dict(command), session=self.session, codec_options=self._codec)

    def _take(self, reply: dict[str, Any]) -> dict[str, Any]:
        self.reply = reply
        cursor = reply["cursor"]
        self.id = Int64(cursor["id"])
        self.batch: list[Event] = cursor.get("firstBatch", cursor.get("nextBatch"))
        self.events += self.batch
        self.pbrt: dict[str, Any] = cursor["postBatchResumeToken"]
        self.pbrts.append(self.pbrt["_data"])
        return reply

    def more(self, max_time_ms: int | None = 100, **fields: Any) -> dict[str, Any]:
        """Send one getMore and return its reply."""
        command = {"getMore": self.id, "collection": self.collection, **fields}
        if max_time_ms is not None:
            command["maxTimeMS"] = max_time_ms
        return self._take(self._answer(command))

    def until(self, done: Callable[[Self], Any], **fields: Any) -> list[Event]:
        """Read until ``done(self)`` is true; return all events so far."""
        deadline = Deadline()
        while not done(self):
            assert self.id, f"the stream ended with {self.events}"
            deadline.check("more events", self.events)
            self.more(**fields)
        return self.events

    def read(self, count: int, **fields: Any) -> list[Event]:
        """Read until there are at least ``count`` events; return all so far."""
        return self.until(lambda self: len(self.events) >= count, **fields)

    def past(self, end: Timestamp, **fields: Any) -> list[Event]:
        """Read until the stream has passed ``end`` or has ended; return all events so far."""
        append_notes(self.client)
        return self.until(lambda self: not self.id or time_of(self.pbrt) > end, **fields)

    def failure(self) -> dict[str, Any]:
        """Read until a getMore fails; return the whole error reply."""
        deadline = Deadline()
        while True:
            deadline.check("a failure", self.events)
            try:
                self.more()
            except OperationFailure as error:
                return dict(error.details or {})

    def close(self) -> None:
        """Kill the cursor if it is still open."""
        self._answer({"killCursors": self.collection, "cursors": [self.id]})
        self.session.end_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def time_of(token: Mapping[str, Any]) -> Timestamp:
    """Return a resume token's cluster time."""
    return cluster_time_of(token["_data"])


def now(client: Client) -> Timestamp:
    """Return the cluster time that the client has seen."""
    time = client.admin.command("ping")["$clusterTime"]["clusterTime"]
    assert isinstance(time, Timestamp)
    return time


def append_notes(client: Client) -> None:
    """Advance real servers' oplogs beyond the cluster time: no stream waits for an idle one."""
    with suppress(OperationFailure):  # the embedded cluster has no-ops at once
        told = client.admin.command("appendOplogNote", data={})["$clusterTime"]
        address = client.admin.command("getShardMap")["map"]["config"].partition("/")[2]
        config = Client(f"mongodb://{address}/?directConnection=true")
        with config, config.start_session() as session:
            session.advance_cluster_time(told)
            config.admin.command("appendOplogNote", data={}, session=session)


def next_tick(time: Timestamp) -> Timestamp:
    """Return the cluster time after ``time``."""
    return Timestamp(time.time, time.inc + 1)


def refused(client: Client, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command that must fail; return the whole error reply."""
    try:
        reply = client[database].command(dict(command))
    except OperationFailure as error:
        return dict(error.details or {})
    raise AssertionError(f"not refused: {reply}")


def kinds(events: list[Event]) -> list[str]:
    """Return the events' operationTypes."""
    return [event["operationType"] for event in events]
