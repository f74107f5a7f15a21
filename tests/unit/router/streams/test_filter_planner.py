"""Which filters the router may evaluate."""

from bson import Timestamp

from router.change_stream.request import parse_request
from router.stream_settings import StreamSettings
from router.streams.failed_streams import FailedStreams
from router.streams.filter_planner import FilterPlanner
from router.streams.placement import ALWAYS, Placement
from router.streams.sources import Source
from tests.unit.router.tokens import data_of


class Servers:
    """Servers of MongoDB 6.0."""

    undefined_is_null = True


MATCH = {"$match": {"operationType": "insert"}}


def placed(start: dict) -> Placement:
    limits = StreamSettings(share_filters=ALWAYS)
    command = {"aggregate": "c", "pipeline": [{"$changeStream": start}, MATCH], "cursor": {}}
    own = Source(parse_request("db", command))
    placement = Placement(own, own)
    FilterPlanner(limits, FailedStreams(), Servers()).place(placement)
    return placement


def test_filters_after_an_invalidate_stay_with_the_shards():
    # Events that they leave out do not count when a shard swallows an invalidate.
    assert placed({"startAtOperationTime": Timestamp(10, 1)}).whole is not None
    placement = placed({"startAfter": {"_data": data_of(10, 0, invalidate=True)}})
    assert placement.whole is None
    assert placement.reason == "it starts after an invalidate"
    assert placed({"startAfter": {"_data": data_of(10, 0)}}).whole is not None
