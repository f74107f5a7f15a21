"""`python -m tests.differential.moving_router serve …`: a router whose readers move at each reply.

After each reply that brings a reader further, it goes to one of the streams that can serve it: its
own, its scope's without a filter, or a wider scope's, each time another one or a new one of the
same. It moves at once, as a reader does whose stream has lost its events, or joins the other stream
where it can, as readers do that catch up. ``shareFilters`` and ``shareScopes`` must be ``always``.
"""

from random import Random
from unittest import mock

from router import cli
from router.change_stream.log_reader import Batch, LogReader
from router.cursors.merged_cursor import MergedCursor
from router.streams import failed_streams
from router.streams.placement import Placement
from router.streams.pool import StreamPool
from router.streams.sources import Source

_chance = Random(1)
_take_ready = MergedCursor._take_ready
_closed = StreamPool.closed
_wanted: dict[int, Source] = {}
"""The source that each reader should read, by the ``id`` of its placement."""


def _choose(pool: StreamPool, placement: Placement) -> Source:
    now = pool._loop.time()
    shared = [*placement.wider, *filter(None, [placement.whole])]
    open_to = [each for each in shared if not pool._failed.avoids(each.key, now)]
    others = [each for each in (placement.own, *open_to) if each.key != placement.source.key]
    return _chance.choice(others or [placement.own])


def _preferred(pool: StreamPool, placement: Placement, _reader: LogReader | None = None) -> Source:
    if id(placement) not in _wanted:
        _wanted[id(placement)] = _choose(pool, placement)
    wanted = _wanted[id(placement)]
    avoided = wanted is not placement.source and pool._failed.avoids(wanted.key, pool._loop.time())
    return placement.own if avoided else wanted


def _take_and_move(cursor: MergedCursor, max_events: int | None) -> Batch:
    before = cursor._log_reader.high_water_mark
    batch = _take_ready(cursor, max_events)
    goes_on = not batch.closed and cursor._moving is None and not cursor._closed
    if goes_on and (max_events == 0 or cursor._log_reader.high_water_mark != before):
        placement = cursor._streams._placements[cursor._log_reader]
        _wanted[id(placement)] = _choose(cursor._streams, placement)
        if _chance.random() < 0.6:
            cursor._move()
    return batch


def _forget(pool: StreamPool, log_reader: LogReader) -> None:
    _wanted.pop(id(pool._placements[log_reader]), None)
    _closed(pool, log_reader)


def main() -> None:
    """Run the router's command line."""
    with (
        mock.patch.object(failed_streams, "FIRST_PAUSE", 0.1),
        mock.patch.object(failed_streams, "LONGEST_PAUSE", 1.0),
        mock.patch.object(StreamPool, "_preferred", _preferred),
        mock.patch.object(StreamPool, "closed", _forget),
        mock.patch.object(MergedCursor, "_take_ready", _take_and_move),
    ):
        cli.main()


if __name__ == "__main__":
    main()
