"""The router's evaluation of the recorded streams' filters selects the recorded events."""

import pytest

from router.filters.index import FilterIndex
from router.filters.stream_filter import compile_filter
from tests.recordings.recorded import events, of, shards
from tests.recordings.workload import STREAMS

WHOLE = "db"


@pytest.mark.parametrize("name", ["db-match", "db-project"])
def test_filters_give_the_recorded_events(name: str) -> None:
    database, target, options, stages = STREAMS[name]
    assert (database, target, options) == STREAMS[WHOLE][:3]
    stream_filter = compile_filter(stages)
    index: FilterIndex[str] = FilterIndex()
    index.add(name, stream_filter)
    for via in ("mongos", *shards(WHOLE)):
        routed = dict(index.route(events(of(WHOLE, via)))).get(name, [])
        assert [stream_filter.project(each) for each in routed] == list(events(of(name, via)))
        assert via != "mongos" or routed
