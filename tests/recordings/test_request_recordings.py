"""parse_request raises mongos's recorded errors for bad `aggregate` commands."""

import pytest

from router.request.stream_commands import is_change_stream
from router.request.stream_request import AfterToken, parse_request
from shard_client.errors import CommandError
from shard_client.wire.documents import encode
from tests.recordings.recorded import cases

# These errors depend on the shards; the requests are well formed.
FROM_SHARDS = {"on-view", "bad-match", "passthrough-unknown"}

# The stream opens and fails later.
OPENINGS = [
    (name, case["db"], case["steps"][0]["command"], case["steps"][0]["reply"])
    for name, case in cases().items()
    if "steps" in case and "aggregate" in case["steps"][0]["command"]
]
BAD = [
    pytest.param(db, command, reply, id=name)
    for name, db, command, reply in OPENINGS
    if not reply["ok"] and name not in FROM_SHARDS
]
GOOD = [
    pytest.param(db, command, reply, id=name)
    for name, db, command, reply in OPENINGS
    if reply["ok"] or name in FROM_SHARDS
]


def test_there_are_cases():
    assert len(BAD) > 50
    assert len(GOOD) > 40


@pytest.mark.parametrize(("db", "command", "reply"), BAD)
def test_bad_requests_get_the_error_of_mongos(db, command, reply):
    with pytest.raises(CommandError) as caught:
        parse_request(db, command)
    error = caught.value
    assert error.to_reply() == {
        key: value for key, value in reply.items() if key not in ("$clusterTime", "operationTime")
    }


@pytest.mark.parametrize(("db", "command", "reply"), GOOD)
def test_good_requests_are_accepted(db, command, reply):
    request = parse_request(db, command)
    assert is_change_stream(encode(command))
    if "cursor" in reply and "firstBatch" in reply["cursor"]:
        assert request.namespace == reply["cursor"]["ns"]
    if isinstance(request.start, AfterToken):
        token = reply["cursor"]["postBatchResumeToken"]
        assert request.start.token.data.decode() == token["_data"]


@pytest.mark.parametrize("name", ["not-first", "split-without", "internal-stage"])
def test_misplaced_stages_count_as_change_streams(name):
    assert is_change_stream(encode(cases()[name]["steps"][0]["command"]))


def test_ordinary_aggregates_are_no_change_streams():
    assert not is_change_stream(
        encode({"aggregate": "a", "pipeline": [{"$match": {}}], "cursor": {}})
    )
    assert not is_change_stream(encode({"aggregate": "a", "pipeline": 5}))
