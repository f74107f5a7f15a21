"""The resume token that a stream begins with, as in a mongos's empty first batch."""

import pytest
from bson import Timestamp

from router.request.stream_request import parse_request
from router.stream.log_reader import starting_point
from shard_client.bson.resume_token import ResumeToken

START = Timestamp(10, 1)


@pytest.mark.parametrize(
    ("given", "splits", "begins_with"),
    [(0, False, 0), (1, False, 1), (2, False, 2), (0, True, 0), (1, True, 2), (2, True, 2)],
)
def test_the_start_has_the_version_of_fragments(given: int, splits: bool, begins_with: int) -> None:
    token = {"_data": ResumeToken.high_water_mark(START, given).data.decode()}
    pipeline = [{"$changeStream": {"resumeAfter": token}}]
    pipeline += [{"$changeStreamSplitLargeEvent": {}}] if splits else []
    request = parse_request("db", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    point = starting_point(request, START, 1)
    begins = ResumeToken.high_water_mark(START, begins_with)
    assert point.high_water_mark == (begins.data, begins.raw)
