"""Processes signals on Spark's driver: receives them, and advances the requested snapshots."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import partial

from bson.timestamp import Timestamp

from spark_sink.events.positions import FromNow, Position, time_of
from spark_sink.options.stream_options import StreamOptions
from spark_sink.signals.ad_hoc import AdHocSnapshots
from spark_sink.signals.channels import SignalCollection, SignalFolder
from spark_sink.signals.state import SignalState
from spark_sink.snapshot.planner import SnapshotPlanner
from spark_sink.stream.router_client import RouterClient

# Await time of a getMore on the collection of signals, in seconds: each batch makes one.
_AWAIT = 0.001
_OPEN = (
    "the query has a pipeline, whose stages work on events: start it with option snapshotFilters, "
    "which selects the documents of snapshots ({} is all)"
)


class SignalProcessor:
    """Receives the signals of a query, and advances the snapshots that they request.

    Raises OptionError if the folder of signals cannot be read here.
    """

    def __init__(self, client: RouterClient, options: StreamOptions) -> None:
        self._client = client
        planner = SnapshotPlanner(client.plain(), options.scope, options.rows_per_chunk)
        self._rows = options.max_events_per_trigger
        self._snapshots = AdHocSnapshots(planner, _OPEN if options.lacks_snapshot_filters else None)
        given = options.signals
        self._folder = None if given.folder is None else SignalFolder(given.folder)
        self._collection = None
        if given.collection is not None:
            watch = partial(client.watch_inserts, *given.collection, max_await=_AWAIT)
            self._collection = SignalCollection(watch, self._newest, options.retry_policy)

    def receive(self, state: SignalState, position: Position) -> SignalState:
        """Return the state after new signals, at a position of the stream. Raises StreamError."""
        if isinstance(position, FromNow):  # signals are read from the query's beginning on
            return state
        present: Container[str] = ()
        if self._folder is not None:
            signals = self._folder.receive(state.handled)
            present = self._folder.present
            state = self._snapshots.process(state, signals, present)
        if self._collection is not None:
            signals, reached = self._collection.receive(state.position or position)
            state = self._snapshots.process(replace(state, position=reached), signals, present)
        return state

    def require(self, state: SignalState, unread: Mapping[tuple[str, str], str]) -> SignalState:
        """Return the state with a request for collections that a table lacks.

        See `AdHocSnapshots.require`.
        """
        return self._snapshots.require(state, unread)

    def advance(self, state: SignalState, end: Position, max_rows: int | None) -> SignalState:
        """Return the state with the chunks of a batch, whose events end at `end`.

        The chunks have about `max_rows` documents; None: as many as a batch has events by default.
        Raises PyMongoError, and StreamError if the router cannot be reached.
        """
        if state.running is None:
            return state
        streamed = time_of(end)

        def advanced() -> SignalState:
            newest = self._newest()
            at = newest if streamed is None else max(newest, streamed)
            return self._snapshots.advance(state, at, max_rows or self._rows)

        return self._client.with_retries(advanced)

    def committed(self, state: SignalState) -> None:
        """Remove the files of signals that a committed batch has processed."""
        if self._folder is not None:
            self._folder.remove(state.handled)

    def close(self) -> None:
        """Kill the cursor on the collection."""
        if self._collection is not None:
            self._collection.close()

    def _newest(self) -> Timestamp:
        return self._client.with_retries(self._client.clocks).cluster_time
