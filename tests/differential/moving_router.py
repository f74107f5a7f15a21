"""`python -m tests.differential.moving_router serve …`: a router whose readers move at each reply.

After each reply that brings a reader further, it goes to one of the streams that can serve it: its
own, its scope's without a filter, or a wider scope's, each time another one or a new one of the
same. It moves at once, as a reader does whose stream has lost its events, or joins the other stream
where it can, as readers do that catch up. ``shareFilters`` and ``shareScopes`` must be ``always``.
"""

from random import Random
from unittest import mock

from router import cli
from router.stream import failed_streams
from router.stream.client_reader import ClientReader
from router.stream.readers.log_reader import Batch
from router.stream.sources import Source, wider_streams

_chance = Random(1)
_first_batch = ClientReader.first_batch
_take = ClientReader.take
_close = ClientReader.close
_wanted: dict[int, Source] = {}
"""The source that each reading should have, by its ``id``."""


def _choose(reading: ClientReader) -> Source:
    now, candidates = reading._loop.time(), reading._candidates
    shared = list(candidates.filters.sources)
    for each in candidates.scopes.sources[:1]:
        shared += wider_streams(candidates.own.request, each.filter)
    avoids = reading._streams.policy._failed.why_avoided
    open_to = [candidates.own, *(each for each in shared if not avoids(each.key, now))]
    others = [each for each in open_to if each.key != reading._source.key]
    return _chance.choice(others or [candidates.own])


def _preferred(reading: ClientReader, _start_at: object = None) -> Source:
    wanted = _wanted.setdefault(id(reading), _choose(reading))
    avoids = reading._streams.policy._failed.why_avoided
    avoided = wanted is not reading._source and avoids(wanted.key, reading._loop.time())
    return reading._candidates.own if avoided else wanted


def _first_batch_and_move(reading: ClientReader) -> Batch:
    batch = _first_batch(reading)
    _perhaps_move(reading, batch)
    return batch


def _take_and_move(reading: ClientReader, max_events: int | None) -> Batch:
    before = reading.log_reader.high_water_mark
    batch = _take(reading, max_events)
    if reading.log_reader.high_water_mark != before:
        _perhaps_move(reading, batch)
    return batch


def _perhaps_move(reading: ClientReader, batch: Batch) -> None:
    if not batch.closed and reading.stream is not None:
        _wanted[id(reading)] = _choose(reading)
        if _chance.random() < 0.6:
            reading._move()


def _forget(reading: ClientReader) -> None:
    _wanted.pop(id(reading), None)
    _close(reading)


def main() -> None:
    """Run the router's command line."""
    with (
        mock.patch.object(failed_streams, "FIRST_PAUSE", 0.1),
        mock.patch.object(failed_streams, "LONGEST_PAUSE", 1.0),
        mock.patch.object(ClientReader, "_preferred", _preferred),
        mock.patch.object(ClientReader, "close", _forget),
        mock.patch.object(ClientReader, "first_batch", _first_batch_and_move),
        mock.patch.object(ClientReader, "take", _take_and_move),
    ):
        cli.main()


if __name__ == "__main__":
    main()
