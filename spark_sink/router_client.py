"""A MongoClient for one stream: opens change streams on the router, asks it for the cluster time.

The router is used like any mongos, through pymongo (docs/design.md, section 12).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, PyMongoError

from spark_sink.errors import StreamError
from spark_sink.options import StreamOptions
from spark_sink.positions import AtTime, FromNow, Position, Token
from spark_sink.session_guard import SessionGuard

_PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)

# Seconds after which a router that cannot be connected to is said to be away.
_SELECTION_TIMEOUT = 2.5


@dataclass(frozen=True)
class Clocks:
    """The newest cluster time that the router has seen, and its wall clock (seconds since 1970)."""

    cluster_time: Timestamp
    wall: float


class WatchedStream(Protocol):
    """The part of pymongo's ChangeStream that is used here."""

    @property
    def alive(self) -> bool:
        """Whether the server may still return events."""

    @property
    def resume_token(self) -> Any:
        """The token that everything returned so far lies at or below."""

    def try_next(self) -> RawBSONDocument | None:
        """The next event, or None when one getMore brought none."""

    def close(self) -> None:
        """Kill the cursor."""


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
            serverSelectionTimeoutMS=int(_SELECTION_TIMEOUT * 1000),
        )
        self._session: ClientSession | None = None
        self._guard: SessionGuard | None = None
        if guarded:
            # Causal consistency would add a read concern, which change streams do not take.
            self._session = self._client.start_session(causal_consistency=False)
            self._guard = SessionGuard(options.uri, self._session.session_id)

    def watch_events(
        self, position: Position, *, batch_size: int, max_await: float
    ) -> WatchedStream:
        """The stream of whole events after `position`.

        batch_size: events a reply may hold, 0 for as many as the server likes; max_await: seconds
        that the server waits for events. Raises PyMongoError.
        """
        return self._watch(position, self._stages(), batch_size, max_await)

    def watch_tokens(self, position: Position, *, max_await: float) -> WatchedStream:
        """The same stream, of which only the tokens are sent, so that planning costs little.

        max_await: seconds. Raises PyMongoError.
        """
        stages = self._stages()
        # Fragments have tokens of their own, made by a stage that must stay the last one.
        if not self._options.splits_large_events:
            stages.append({"$project": {"_id": 1}})
        # An empty first batch always comes with a token (docs/protocol.md, section 2).
        return self._watch(position, stages, 0, max_await)

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

    def close(self) -> None:
        """Close all connections."""
        if self._guard is not None:
            self._guard.close()
        self._client.close()

    def _watch(
        self, position: Position, stages: list[Any], batch_size: int, max_await: float
    ) -> WatchedStream:
        options = self._options
        stream: WatchedStream = self._target().watch(
            stages,
            full_document=options.full_document,
            full_document_before_change=options.full_document_before_change,
            show_expanded_events=options.show_expanded_events or None,
            batch_size=batch_size,
            max_await_time_ms=int(max_await * 1000),
            session=self._session,
            **_start(position),
        )
        return stream

    def _stages(self) -> list[Any]:
        return [*self._options.scope.stages, *self._options.pipeline]

    def _address(self) -> str:
        seeds = self._client.topology_description.server_descriptions()
        return ", ".join(f"{host}:{port}" for host, port in seeds)

    def _target(self) -> Any:
        scope = self._options.scope
        if scope.database is None:
            return self._client
        database = self._client[scope.database]
        return database[scope.collections[0]] if len(scope.collections) == 1 else database


def _start(position: Position) -> dict[str, Any]:
    match position:
        case Token(document):
            # startAfter takes every token, an invalidate's included.
            return {"start_after": dict(document)}
        case AtTime(time):
            return {"start_at_operation_time": time}
        case FromNow():
            return {}
