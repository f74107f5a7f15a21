"""A MongoClient for one stream: opens change streams, and reads the cluster time.

The server is a router, a mongos or a replica set: all are used alike, through pymongo
(docs/spark-rationale.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, ReadPreference
from pymongo.database import Database
from pymongo.errors import ConfigurationError, ConnectionFailure, OperationFailure, PyMongoError

from spark_sink.errors import StreamError, stream_refused
from spark_sink.events.positions import AtTime, FromNow, Position, Token
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.stream.event_stream import EventStream
from spark_sink.stream.raw_replies import CLOSED_WITHIN, StreamCursor
from spark_sink.stream.retries import Retries, is_transient

_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)

_Result = TypeVar("_Result")

# Events of a reply of the merged stream to a task. The router keeps the last MiB that it has sent,
# for the task that continues within the last reply of this one.
_MERGED_BATCH = 1000
# Seconds that a getMore of a task waits for events.
_READING_AWAIT = 0.5
# Seconds in which a server must answer a request of a stream. A member of a replica set needs many:
# it reads its oplog up to an event or to the end, two seconds for a million entries.
_ANSWERED_WITHIN = 1800.0
# Tokens of a reply to the planner, which rarely needs more.
_TOKEN_BATCH = 500
_TRANSACTIONS = ("lsid", "txnNumber")

_ONE_SHARD = "$_passthroughToShard"
# Unauthorized, UserNotFound, AuthenticationFailed; AtlasError.
_OF_LOGIN = (13, 11, 18, 8000)
# Unauthorized; CommandNotFound and NoShardingEnabled: a replica set has no shards to list.
_NO_SHARD_LIST = (13, 59, 203)
_MEMBER = (
    "is one member of a replica set, connected to directly: an election may end that. Remove "
    "directConnection=true from option 'uri'"
)
_PART = (
    "is a {} of a cluster, with one part of the documents at most. Name a router or a mongos in "
    "option 'uri'"
)
_STANDALONE = (
    "is a standalone server, which has no change streams. Make it a replica set (rs.initiate), or "
    "correct option 'uri'"
)


@dataclass(frozen=True)
class Clocks:
    """The newest cluster time that the server has seen, and its wall clock (seconds since 1970)."""

    cluster_time: Timestamp
    wall: float


@dataclass(frozen=True)
class Shard:
    """A shard of the cluster, and the cluster time of its joining if known."""

    name: str
    joined: Timestamp | None = None


class RouterClient:
    """Connections to one server. Its owner closes it, with every cursor opened through it.

    A server that answers hellos, but no request of a stream, counts as unreachable
    (`_ANSWERED_WITHIN`).
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._connections = ExitStack()
        self._client = self._connected(socketTimeoutMS=int(_ANSWERED_WITHIN * 1000))

    def watch_events(self, position: Position, shard: str | None = None) -> StreamCursor:
        """Return the stream of complete events after `position`, merged or of one shard.

        Raises PyMongoError.
        """
        one: dict[str, Any] = {"batchSize": _MERGED_BATCH}
        if shard is not None:
            one = {_ONE_SHARD: {"shard": shard}}
        return self._watch(position, self._stages(), _READING_AWAIT, **one)

    def watch_tokens(self, position: Position, *, max_await: float) -> StreamCursor:
        """Return the merged stream with the events' tokens alone, so that planning costs little.

        If batches keep transactions, events also have a transaction's fields. `max_await` is in
        seconds. Raises PyMongoError.
        """
        stages = self._stages()
        # Fragments have separate tokens, from a stage that must remain the last one.
        if not self._options.splits_large_events:
            wanted = _TRANSACTIONS if self._options.keeps_transactions else ()
            stages.append({"$project": dict.fromkeys(("_id", *wanted), 1)})
        # An empty first batch always has a token (docs/protocol.md#cursor-replies).
        return self._watch(position, stages, max_await, batchSize=_TOKEN_BATCH)

    def tokens(
        self,
        start: Position,
        *,
        max_await: float = _READING_AWAIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> EventStream:
        """Return the events of `watch_tokens`, over as many cursors as needed."""
        watch = partial(self.watch_tokens, max_await=max_await)
        return EventStream(watch, start, retry_policy=self._options.retry_policy, clock=clock)

    def require_history(self, start: Position) -> None:
        """Raise HistoryLostError if the oplogs no longer contain a position, or StreamError."""
        with closing(self.tokens(start)) as stream:
            stream.require_history()

    def watch_inserts(
        self, database: str, collection: str, position: Position, *, max_await: float
    ) -> StreamCursor:
        """Return the inserts into a collection, also outside of the scope, and invalidates.

        `max_await` is in seconds. Raises PyMongoError.
        """
        stages = [{"$match": {"operationType": {"$in": ["insert", "invalidate"]}}}]
        return self._opened(self._client[database][collection], _start(position), stages, max_await)

    def present(self) -> Timestamp:
        """Return a cluster time that can be read at, at or after all finished writes.

        Raises PyMongoError, StreamError.
        """
        begins = self._watermark()  # the tick after the newest one, which no clock may have reached
        before = Timestamp(begins.time, begins.inc - 1) if begins.inc else begins
        return max(before, self.clocks().cluster_time)

    def newest_time(self, at_least: Timestamp) -> Timestamp:
        """Return the newest cluster time that the server knows.

        A router without streams learns no time from the shards. If it has not reached `at_least`,
        a stream from now asks them. Raises PyMongoError, StreamError.
        """
        newest = self.clocks().cluster_time
        return newest if newest >= at_least else max(newest, self._watermark())

    def _watermark(self) -> Timestamp:
        """Return where a stream from now begins: the watermark of all shards."""
        try:
            stream = self.watch_tokens(FromNow(), max_await=0.001)
        except OperationFailure as error:
            if is_transient(error):
                raise
            raise stream_refused(error) from None
        try:
            return Token(dict(stream.resume_token)).cluster_time
        finally:
            stream.close()

    def shards(self) -> list[Shard] | None:
        """Return all shards; None if the server lists none. Raises PyMongoError."""
        try:
            reply = self._client.admin.command("listShards", codec_options=_PLAIN)
        except OperationFailure as error:
            if error.code in _NO_SHARD_LIST:
                return None
            raise
        return [Shard(entry["_id"], entry.get("topologyTime")) for entry in reply["shards"]]

    def cluster_id(self) -> str:
        """Return the id that the cluster or the set was made with; empty if it may not be read.

        Raises PyMongoError.
        """
        try:
            version = self._client.config.version.find_one()
            if version is not None:
                return str(version.get("clusterId", ""))
            reply = self._client.admin.command("replSetGetConfig", codec_options=_PLAIN)
        except OperationFailure:  # not allowed, or a router without a mongos
            return ""
        return str(reply["config"].get("settings", {}).get("replicaSetId", ""))

    @cached_property
    def mongo(self) -> MongoClient[RawBSONDocument]:
        """A client for documents, as RawBSONDocument: a request may take as long as it needs."""
        return self._connected()

    def _connected(self, **options: Any) -> MongoClient[RawBSONDocument]:
        """Return a client: events stay as sent, and dates out of Python's range do not fail."""
        client = mongo_client(
            self._options.uri,
            self._options.retry_policy.selection_timeout,
            document_class=RawBSONDocument,
            datetime_conversion="DATETIME_MS",
            unicode_decode_error_handler="replace",
            **options,
        )
        return self._connections.enter_context(client)

    @property
    def address(self) -> tuple[str, int]:
        """The first of the servers that are named or known."""
        seeds = sorted(self._client.topology_description.server_descriptions())
        return seeds[0][0], seeds[0][1] or 27017

    def with_retries(self, call: Callable[[], _Result]) -> _Result:
        """Return the result of a call to the server, which is retried as the options say.

        Raises StreamError when the retries are exhausted, and other errors immediately.
        """
        return Retries(self._options.retry_policy).run(call)

    def clocks(self) -> Clocks:
        """Return the server's clocks. Raises PyMongoError, and StreamError if it has none."""
        reply = self._client.admin.command("hello", codec_options=_PLAIN)
        cluster_time = reply.get("$clusterTime", {}).get("clusterTime")
        if not isinstance(cluster_time, Timestamp):
            raise StreamError(
                f"the server at {addresses_of(self._client)} has no cluster time: it is no router, "
                "mongos or replica set. Correct option 'uri'"
            )
        return Clocks(cluster_time, reply["localTime"].timestamp())

    def require_reachable(self) -> None:
        """Connect now.

        Raises StreamError within seconds if that cannot be done, or if a server answers that has
        only a part of the documents.
        """
        try:
            require_deployment(self._client)
            self.with_retries(self.clocks)  # a replica set may be electing a primary
        except ConnectionFailure as error:
            raise StreamError(
                f"the server at {addresses_of(self._client)} cannot be reached: start it, or "
                "correct option 'uri'",
                error,
            ) from None
        except PyMongoError as error:
            problem = (
                "refuses the connection: check the user, the password and the TLS options in "
                "option 'uri'"
            )
            if isinstance(error, OperationFailure) and error.code not in _OF_LOGIN:
                problem = "cannot serve the query now: look into its log, or start again later"
            raise StreamError(
                f"the server at {addresses_of(self._client)} {problem}", error
            ) from None

    def require_stream(self) -> None:
        """Connect, and let the server check the user's rights and the pipeline. Raises StreamError.

        A stream of the whole cluster is opened only if there is a pipeline to check.
        """
        self.require_reachable()
        if self._options.pipeline or self._options.scope.database is not None:
            self.with_retries(self._watermark)

    def close(self) -> None:
        """Close all connections; the server is waited for up to `CLOSED_WITHIN`."""
        with pymongo.timeout(CLOSED_WITHIN):
            self._connections.close()

    def _watch(
        self, position: Position, stages: list[Any], max_await: float, **further: Any
    ) -> StreamCursor:
        options, scope = self._options, self._options.scope
        wanted = {
            "fullDocument": options.full_document,
            "fullDocumentBeforeChange": options.full_document_before_change,
            "showExpandedEvents": options.show_expanded_events or None,
            "showRawUpdateDescription": options.reads_raw_updates or None,
            "allChangesForCluster": scope.database is None or None,
            **_start(position),
        }
        change_stream = {name: value for name, value in wanted.items() if value is not None}
        target: Any = self._client[scope.database or "admin"]
        if len(scope.collections) == 1:
            target = target[scope.collections[0]]
        return self._opened(target, change_stream, stages, max_await, **further)

    def _opened(
        self, target: Any, change_stream: Any, stages: list[Any], max_await: float, **further: Any
    ) -> StreamCursor:
        cursor = target.aggregate(
            [{"$changeStream": change_stream}, *stages],
            maxAwaitTimeMS=max(1, int(max_await * 1000)),
            **further,
        )
        return StreamCursor(cursor)

    def _stages(self) -> list[Any]:
        options = self._options
        return [*options.scope.stages, *options.skipping, *options.pipeline]


def mongo_client(uri: str, selection_timeout: float, **options: Any) -> MongoClient[Any]:
    """Return a client that finds its servers within some seconds.

    Raises StreamError if the addresses behind a `mongodb+srv` URI cannot be looked up.
    """
    try:
        return MongoClient(
            uri,
            appname="mergerouter-spark",
            serverSelectionTimeoutMS=int(selection_timeout * 1000),
            **options,
        )
    except ConfigurationError as error:
        raise StreamError(
            "DNS has no servers for the name in option 'uri': correct the name, or check the "
            "resolver of this machine",
            error,
        ) from None


def require_deployment(client: MongoClient[Any]) -> None:
    """Raise StreamError if the server is only a part of a deployment.

    A router, a mongos and a replica set stand for a whole one. Raises PyMongoError if nothing
    answers.
    """
    admin = client.get_database("admin", _PLAIN, ReadPreference.PRIMARY_PREFERRED)
    try:
        reply = admin.command("hello", codec_options=_PLAIN, read_preference=admin.read_preference)
    except ConnectionFailure:
        known = client.topology_description
        if known.server_descriptions():
            raise
        raise StreamError(  # the driver leaves out the members of other sets
            f"no server that option 'uri' names is a member of the set {known.replica_set_name}: "
            "correct replicaSet or the addresses"
        ) from None
    if reply.get("msg") == "isdbgrid":
        return
    problem = None
    if "setName" not in reply:
        problem = _STANDALONE
    elif "configsvr" in reply or _is_shard(admin):
        problem = _PART.format("config server" if "configsvr" in reply else "shard")
    elif client.topology_description.topology_type_name == "Single":
        problem = _MEMBER
    if problem is not None:
        raise StreamError(f"the server at {addresses_of(client)} {problem}")


def _is_shard(admin: Database[Any]) -> bool:
    """Return whether a replica set is known to be a shard."""
    try:
        identity = admin["system.version"].find_one({"_id": "shardIdentity"})
    except OperationFailure:  # the user may not read it
        return False
    return identity is not None


def addresses_of(client: MongoClient[Any]) -> str:
    """Return the addresses of the servers that a client knows, for messages."""
    seeds = client.topology_description.server_descriptions()
    return ", ".join(f"{host}:{port}" for host, port in seeds)


def _start(position: Position) -> dict[str, Any]:
    match position:
        case Token(document):
            # startAfter accepts every token, including an invalidate's.
            return {"startAfter": dict(document)}
        case AtTime(cluster_time):
            return {"startAtOperationTime": cluster_time}
        case FromNow():
            return {}


def require_cluster(options: dict[str, str]) -> str:
    """Check options and router before the slow start of Spark; return the cluster's id.

    Raises SourceError.
    """
    with closing(RouterClient(parse_options(options))) as client:
        client.require_stream()
        return client.with_retries(client.cluster_id)
