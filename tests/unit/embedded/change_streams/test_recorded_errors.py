"""Bad options get the recorded answers."""

import gzip

import bson
import pytest

from embedded.change_streams import first_batch_size, is_change_stream, open_change_stream
from shard_client.errors import CommandError
from tests.doubles.recorded_host import DATA, RecordedHost

ELSEWHERE = {
    "on-local": "mongos has its own answer",
    "on-system-coll-allow": "allowed on a mongod",
    "migration-events": "allowed on a mongod",
    "internal-stage": "the command's business",
    "needsMerge": "the command's business",
    "fromMongos": "the command's business",
    "passthrough-unknown": "mongos only",
    "apiStrict-expanded": "no API versions here",
    "in-transaction": "told from the command below",
}


def cases():
    with gzip.open(DATA.with_name("cases.bson.gz")) as file:
        documents = bson.decode_all(file.read())
    for case in documents:
        for step in case.get("steps", [])[:1]:
            command, reply = step["command"], step["reply"]
            ours = "aggregate" in command and is_change_stream(command)
            if ours and reply["ok"] != 1 and case["case"] not in ELSEWHERE:
                yield pytest.param(case["db"], command, reply, id=case["case"])


def opened(db, command):
    first_batch_size(command)
    return open_change_stream(RecordedHost("shard3"), db, command)


@pytest.mark.parametrize(("db", "command", "reply"), list(cases()))
def test_errors_equal_the_recorded_ones(db, command, reply):
    with pytest.raises(CommandError) as error:
        opened(db, command)
    wanted = ("ok", "errmsg", "code", "codeName")
    assert error.value.to_reply() == {key: reply[key] for key in wanted}


def test_a_transaction_is_refused():
    command = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}}
    with pytest.raises(CommandError) as error:
        opened("rec", command | {"txnNumber": 1, "autocommit": False, "startTransaction": True})
    assert error.value.code == 263


def test_config_can_be_watched_with_the_internal_option():
    stage = {"$changeStream": {"allowToRunOnConfigDB": True}}
    command = {"aggregate": "shards", "pipeline": [stage], "cursor": {}}
    assert opened("config", command).namespace == "config.shards"
