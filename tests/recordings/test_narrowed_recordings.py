"""Parts of recorded wide streams are exactly the recorded streams of collections and databases."""

from random import Random

import pytest

from router.change_stream.request import parse_request
from tests.doubles.narrowed import PartOfStream
from tests.doubles.scripted_streams import Driver
from tests.recordings.recorded import events, header, of
from tests.recordings.test_merge_recordings import (
    assert_same_events,
    command_of,
    hosts,
    scripts,
)

PARTS = [
    ("coll-orders", "db"),
    ("coll-orders", "cluster"),
    ("coll-flat", "db"),
    ("coll-flat", "cluster"),
    ("db-other", "cluster"),
]
"""Streams, and wider ones with the same options."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("stream", "wider"), PARTS)
def test_a_part_of_a_wider_stream_has_mongos_s_events(stream: str, wider: str, seed: int) -> None:
    request = parse_request(*command_of(wider))
    start = request.start_time
    assert start is not None
    part = PartOfStream(
        request,
        parse_request(*command_of(stream)),
        hosts(),
        start_at=start,
        topology_from=header()["start"],
    )
    driver = Driver(part, scripts(wider), Random(f"{stream}-{wider}-{seed}")).run()

    recorded = of(stream, "mongos")
    assert_same_events(driver.events, list(events(recorded)))
    assert driver.taken[-1].closed == (recorded[-1].cursor_id == 0)
    if driver.taken[-1].closed:
        assert driver.taken[-1].pbrt == recorded[-1].pbrt
        assert not driver.taken[-1].events
