"""A MongoClient for one stream: opens change streams on the router, asks it for the cluster time.

The router is used like any mongos, through pymongo (docs/design.md#feed-and-spark).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import (
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from spark_sink.errors import StreamError, refused_stream
from spark_sink.options import StreamOptions
from spark_sink.patience import Retries, gave_up, may_pass
from spark_sink.positions import AtTime, FromNow, Position, Token
from spark_sink.session_guard import SessionGuard
from spark_sink.watched_stream import StreamCursor, WatchedStream

_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)

_Result = TypeVar("_Result")

# Seconds after which a router that cannot be connected to is said to be away, and how often a start
# looks in this time whether it is; where nothing listens at its address, the start waits less long.
_SELECTION_TIMEOUT = 2.5
_LOOKS = 5
_LOOKS_IF_REFUSED = 2

# Events of a reply to a task that reads a shard itself: it reads one reply at most beyond its end.
_DIRECT_BATCH = 2000
# The same of the merged stream. The router keeps the last MiB of what it has sent, so that the task
# that begins where this one has ended, within a reply, goes on with what was read ahead.
_MERGED_BATCH = 1000
# Tokens of a reply to the planner, which rarely needs more of a stream.
_TOKEN_BATCH = 500

_ONE_SHARD = "$_passthroughToShard"
# CommandNotFound and NoShardingEnabled: a replica set has no shards to list.
_NO_SHARD_LIST = (59, 203)


@dataclass(frozen=True)
class Clocks:
    """The newest cluster time that the router has seen, and its wall clock (seconds since 1970)."""

    cluster_time: Timestamp
    wall: float


@dataclass(frozen=True)
class Shard:
    """A shard of the cluster.

    joined: the cluster time of its joining, where that is known; host: its host string,
    "rsName/host:port,host:port".
    """

    name: str
    joined: Timestamp | None = None
    host: str = ""


class RouterClient:
    """One connection pool to the router. Closed by its owner, with every cursor opened through it.

    options: the stream's options; guarded: see to it that the cursors go even if this process is
    killed (spark_sink.session_guard).
    """

    def __init__(self, options: StreamOptions, *, guarded: bool = False) -> None:
        self._options = options
        # Events stay as they came; dates out of Python's range must not fail.
        self._client: MongoClient[RawBSONDocument] = MongoClient(
            options.uri,
            appname="mergerouter-spark",
            document_class=RawBSONDocument,
            datetime_conversion="DATETIME_MS",
            unicode_decode_error_handler="replace",
            serverSelectionTimeoutMS=self._selection_ms(),
        )
        self._plain: MongoClient[dict[str, Any]] | None = None
        self._direct: dict[str, RouterClient] = {}
        self._session: ClientSession | None = None
        self._guard: SessionGuard | None = None
        if guarded:
            # Causal consistency would add a read concern, which change streams do not take.
            self._session = self._client.start_session(causal_consistency=False)
            self._guard = SessionGuard(options.uri, self._session.session_id)

    def watch_events(
        self, position: Position, shard: str | None = None, *, batch_size: int, max_await: float
    ) -> WatchedStream:
        """The stream of whole events after `position`: the merged one, or that of one shard.

        batch_size: events a reply may hold, 0 for as many as suit a task that ends within a reply;
        max_await: seconds that the server waits for events. Raises PyMongoError, and StreamError if
        a shard that is to be read directly is none of the cluster.
        """
        if shard is not None and self._options.reads_shards_directly:
            direct = batch_size or _DIRECT_BATCH
            return self._on_shard(shard)._watch(position, self._stages(), None, direct, max_await)
        if shard is None:
            batch_size = batch_size or _MERGED_BATCH
        return self._watch(position, self._stages(), shard, batch_size, max_await)

    def watch_tokens(self, position: Position, *, max_await: float) -> WatchedStream:
        """The merged stream, of which only the tokens are sent, so that planning costs little.

        max_await: seconds. Raises PyMongoError.
        """
        stages = self._stages()
        # Fragments have tokens of their own, made by a stage that must stay the last one.
        if not self._options.splits_large_events:
            stages.append({"$project": {"_id": 1}})
        # An empty first batch always comes with a token (docs/protocol.md#cursor-replies).
        return self._watch(position, stages, None, _TOKEN_BATCH, max_await)

    def watch_inserts(
        self, database: str, collection: str, position: Position, *, max_await: float
    ) -> WatchedStream:
        """The inserts into a collection, which need not belong to the scope, and invalidates.

        max_await: seconds. Raises PyMongoError.
        """
        stages = [{"$match": {"operationType": {"$in": ["insert", "invalidate"]}}}]
        target = self._client[database][collection]
        return self._aggregate(target, _start(position), stages, {}, max_await)

    def present(self) -> Timestamp:
        """A cluster time that no finished write lies behind. Raises PyMongoError, StreamError."""
        return max(self._beginning(), self.clocks().cluster_time)

    def mark(self) -> Timestamp:
        """A cluster time that can be read at, and that no finished write lies behind.

        Raises PyMongoError, StreamError.
        """
        begins = self._beginning()  # the tick after the newest one, which no clock may have reached
        before = Timestamp(begins.time, begins.inc - 1) if begins.inc else begins
        return max(before, self.clocks().cluster_time)

    def _beginning(self) -> Timestamp:
        """Where a stream from now begins: where every shard has been heard to be."""
        try:
            stream = self.watch_tokens(FromNow(), max_await=0.001)
        except OperationFailure as error:
            if error.has_error_label("ResumableChangeStreamError"):
                raise
            raise refused_stream(error) from None
        try:
            return Token(dict(stream.resume_token)).cluster_time
        finally:
            stream.close()

    def shards(self) -> list[Shard] | None:
        """All shards; None where there are none to list. Raises PyMongoError."""
        try:
            reply = self._client.admin.command("listShards", codec_options=_PLAIN)
        except OperationFailure as error:
            if error.code in _NO_SHARD_LIST:
                return None
            raise
        return [
            Shard(each["_id"], each.get("topologyTime"), each["host"]) for each in reply["shards"]
        ]

    @property
    def mongo(self) -> MongoClient[RawBSONDocument]:
        """The client itself: documents stay as they came."""
        return self._client

    def plain(self) -> MongoClient[dict[str, Any]]:
        """A client that decodes documents; it is closed with this one."""
        if self._plain is None:
            self._plain = MongoClient(
                self._options.uri,
                appname="mergerouter-spark",
                datetime_conversion="DATETIME_MS",
                unicode_decode_error_handler="replace",
                serverSelectionTimeoutMS=self._selection_ms(),
            )
        return self._plain

    @property
    def address(self) -> tuple[str, int]:
        """The router that answers, or the first that is named."""
        seeds = sorted(self._client.topology_description.server_descriptions())
        return seeds[0][0], seeds[0][1] or 27017

    def patiently(self, call: Callable[[], _Result]) -> _Result:
        """The result of a call to the router, which is tried again as long as the options say.

        Raises StreamError when the call still fails after that, and at once any error that a
        further attempt cannot mend.
        """
        retries = Retries(self._options.patience)
        while True:
            try:
                return call()
            except PyMongoError as error:
                if not may_pass(error):
                    raise
                if not retries.go_on(error):
                    raise gave_up(self._options.patience, error) from error

    def clocks(self) -> Clocks:
        """The router's clocks. Raises PyMongoError, and StreamError if it has none."""
        reply = self._client.admin.command("hello", codec_options=_PLAIN)
        time = reply.get("$clusterTime", {}).get("clusterTime")
        if not isinstance(time, Timestamp):
            raise StreamError(
                f"the server at {self._address()} has no cluster time: it is no router, mongos or "
                "replica set. Correct option 'uri'"
            )
        return Clocks(time, reply["localTime"].timestamp())

    def require_reachable(self) -> None:
        """Connect now. Raises StreamError within seconds if that cannot be done."""
        try:
            self._connect()
            self.clocks()
        except ConnectionFailure as error:
            raise StreamError(
                f"the router at {self._address()} cannot be reached: start it, or correct option "
                "'uri'",
                error,
            ) from None
        except PyMongoError as error:
            raise StreamError(
                f"the router at {self._address()} refuses the connection: see the user, the "
                "password and the TLS options in option 'uri'",
                error,
            ) from None

    def _connect(self) -> None:
        if self._options.patience.selection is not None:
            _ = self._client.is_mongos  # waits for a server
            return
        for look in range(1, _LOOKS + 1):
            try:
                with pymongo.timeout(_SELECTION_TIMEOUT / _LOOKS):
                    _ = self._client.is_mongos
                return
            except ServerSelectionTimeoutError:
                if look == _LOOKS or (look >= _LOOKS_IF_REFUSED and self._is_refused()):
                    raise

    def _selection_ms(self) -> int:
        seconds = self._options.patience.selection
        return int((_SELECTION_TIMEOUT if seconds is None else seconds) * 1000)

    def _is_refused(self) -> bool:
        """Whether nothing listens at any of the router's addresses."""
        servers = self._client.topology_description.server_descriptions().values()
        causes = [None if each.error is None else each.error.__cause__ for each in servers]
        return all(isinstance(cause, ConnectionRefusedError) for cause in causes)

    def close(self) -> None:
        """Close all connections."""
        for direct in self._direct.values():
            direct.close()
        if self._guard is not None:
            self._guard.close()
        if self._plain is not None:
            self._plain.close()
        self._client.close()

    def _watch(
        self,
        position: Position,
        stages: list[Any],
        shard: str | None,
        batch_size: int,
        max_await: float,
    ) -> WatchedStream:
        options = self._options
        wanted = {
            "fullDocument": options.full_document,
            "fullDocumentBeforeChange": options.full_document_before_change,
            "showExpandedEvents": options.show_expanded_events or None,
            "allChangesForCluster": options.scope.database is None or None,
            **_start(position),
        }
        change_stream = {name: value for name, value in wanted.items() if value is not None}
        further: dict[str, Any] = {} if shard is None else {_ONE_SHARD: {"shard": shard}}
        if batch_size:
            further["batchSize"] = batch_size
        return self._aggregate(self._target(), change_stream, stages, further, max_await)

    def _aggregate(
        self,
        target: Any,
        change_stream: dict[str, Any],
        stages: list[Any],
        further: dict[str, Any],
        max_await: float,
    ) -> WatchedStream:
        cursor = target.aggregate(
            [{"$changeStream": change_stream}, *stages],
            session=self._session,
            maxAwaitTimeMS=max(1, int(max_await * 1000)),
            **further,
        )
        return StreamCursor(cursor)

    def _on_shard(self, shard: str) -> RouterClient:
        """A client of the shard's own servers."""
        if shard not in self._direct:
            hosts = {each.name: each.host for each in self.shards() or ()}
            if shard not in hosts:
                raise StreamError(f"{shard} is no shard of the cluster any more: restart the query")
            uri = _shard_uri(self._options.uri, hosts[shard])
            self._direct[shard] = RouterClient(replace(self._options, uri=uri))
        return self._direct[shard]

    def _stages(self) -> list[Any]:
        options = self._options
        return [*options.scope.stages, *options.skipping, *options.pipeline]

    def _address(self) -> str:
        seeds = self._client.topology_description.server_descriptions()
        return ", ".join(f"{host}:{port}" for host, port in seeds)

    def _target(self) -> Any:
        scope = self._options.scope
        if scope.database is None:
            return self._client.admin
        database = self._client[scope.database]
        return database[scope.collections[0]] if len(scope.collections) == 1 else database


def _shard_uri(uri: str, host: str) -> str:
    """The connection string of a shard: its servers, with the options of the router's."""
    name, _, servers = host.partition("/")
    query = parse_qs(urlsplit(uri).query)
    kept = {key: value for key, value in query.items() if key.lower() not in _OF_THE_ROUTER}
    return f"mongodb://{servers}/?{urlencode({**kept, 'replicaSet': name}, doseq=True)}"


_OF_THE_ROUTER = ("directconnection", "replicaset", "loadbalanced", "authsource", "srvservicename")


def _start(position: Position) -> dict[str, Any]:
    match position:
        case Token(document):
            # startAfter takes every token, an invalidate's included.
            return {"startAfter": dict(document)}
        case AtTime(time):
            return {"startAtOperationTime": time}
        case FromNow():
            return {}
