"""Errors of requests; tests/conformance/test_cases.py has the recorded ones."""

import pytest
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from router.bson_text import render, type_name
from router.request.options import AtTime
from router.request.stream_request import parse_request
from shard_client.errors import CommandError
from tests.unit.router.made_tokens import data_of

FRAGMENT = {"_data": data_of(1, 1, version=2)[:-2] + "2B0204"}


def parse(database: str = "db", **fields):
    command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, **fields}
    return parse_request(database, {k: v for k, v in command.items() if v is not ...})


def stream(*stages, **options):
    return {"pipeline": [{"$changeStream": options}, *stages]}


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"aggregate": 2}, 9, "must specify a collection name or 1"),
        ({"aggregate": True}, 14, "collection name has invalid type: bool"),
        ({"aggregate": None}, 14, "collection name has invalid type: null"),
        ({"aggregate": ""}, 73, "Invalid namespace specified 'db.'"),
        ({"pipeline": ...}, 40414, "'aggregate.pipeline' is missing but a required field"),
        ({"pipeline": {}}, 14, "'pipeline' option must be specified as an array"),
        ({"pipeline": [{"$changeStream": {}}, {}]}, 40323, "exactly one field"),
        ({"cursor": None}, 14, "cursor field must be missing or an object"),
        ({"cursor": {"batchSize": "x"}}, 14, "'cursor.batchSize' is the wrong type 'string'"),
        ({"cursor": {"batchSize": True}}, 14, "expected types '[long, int, decimal, double']"),
        ({"maxTimeMS": -1}, 51024, "'maxTimeMS' value must be >= 0"),
        ({"maxTimeMS": "1"}, 14, "'aggregate.maxTimeMS' is the wrong type 'string'"),
        ({"collation": 5}, 14, "'aggregate.collation' is the wrong type 'int', expected type"),
        ({"allowDiskUse": 1}, 14, "Field 'allowDiskUse' should be a boolean value"),
        ({"allowDiskUse": None}, 14, "but found: null"),
        ({"$_passthroughToShard": {}}, 40414, "$_passthroughToShard.shard"),
        ({"hint": 5}, 9, "Hint must be a string or an object"),
        ({"$readPreference": "nearest"}, 14, "$readPreference has incorrect type"),
        ({"$readPreference": {}}, 4, 'Missing expected field "mode"'),
        ({"$readPreference": {"mode": 1}}, 14, '"mode" had the wrong type'),
        ({"$readPreference": {"mode": "Primary"}}, 2, "Could not parse $readPreference mode"),
        (
            {"$readPreference": {"mode": "primary", "tags": [{"dc": "a"}]}},
            2,
            "Only empty tags are allowed with primary read preference",
        ),
        (
            {"$readPreference": {"mode": "nearest", "maxStalenessSeconds": 89}},
            160,
            "can not be less than 90",
        ),
        (
            {"$readPreference": {"mode": "primary", "maxStalenessSeconds": 90}},
            2,
            "can not be set for the primary mode",
        ),
        ({"$readPreference": {"mode": "nearest", "maxStalenessSeconds": -1}}, 2, "non-negative"),
        ({"$readPreference": {"mode": "nearest", "tags": "a"}}, 14, '"tags" had the wrong type'),
        ({"$readPreference": {"mode": "nearest", "tags": ["a"]}}, 14, "had the wrong type"),
        ({"$readPreference": {"mode": "nearest", "tags": [{"a": 1}]}}, 14, '"a" had the wrong'),
        ({"startTransaction": True}, 263, "cannot run within a multi-document transaction"),
        (stream(allChangesForCluster=1), 14, "'allChangesForCluster' should be a boolean value"),
        (stream(fullDocument=5), 14, "'$changeStream.fullDocument' is the wrong type 'int'"),
        (stream(resumeAfter="82"), 14, "'$changeStream.resumeAfter' is the wrong type 'string'"),
        (stream({"$changeStreamSplitLargeEvent": 1}), 7182800, "should be an empty object"),
        (
            stream({"$_internalShredDocuments": {}}, {"$changeStreamSplitLargeEvent": {}}),
            7182803,
            "$changeStreamSplitLargeEvent is at the wrong position",
        ),
        (stream(resumeAfter=FRAGMENT), 280, "include a $changeStreamSplitLargeEvent stage"),
        (stream({"$limit": 1}, startAfter=FRAGMENT), 20, "$limit is not permitted"),
        (stream({"$densify": {}}), 20, "$densify is not permitted in a $changeStream pipeline"),
        (stream({"$changeStream": {}}), 40602, "only valid as the first stage"),
        (stream({"$_internalSplitPipeline": {}}), 5491300, "not allowed in user requests"),
        (
            {**stream({"$changeStreamSplitLargeEvent": {}}), "apiVersion": "1", "apiStrict": True},
            323,
            "$changeStreamSplitLargeEvent is not allowed with 'apiStrict: true' in API Version 1",
        ),
    ],
)
def test_invalid_requests_are_refused(fields, code, message):
    with pytest.raises(CommandError) as caught:
        parse(**fields)
    assert caught.value.code == code
    assert message in caught.value.message


def test_the_local_database_cannot_be_watched():
    with pytest.raises(CommandError, match="Can't use 'local' database through mongos"):
        parse("local", bogus=1)


def test_clients_cannot_watch_the_config_database():
    with pytest.raises(CommandError) as caught:
        parse("config", **stream(allowToRunOnConfigDB=True))
    assert caught.value.code == 73


def test_null_options_count_as_absent():
    request = parse(**stream(resumeAfter=None, startAtOperationTime=None, fullDocument=None))
    assert request.start is None
    assert parse(hint=None, collation=None).max_time_ms is None


def test_accepted_options_are_kept():
    request = parse(
        **stream({"$match": {}}, startAtOperationTime=Timestamp(7, 1), showExpandedEvents=True),
        cursor={"batchSize": Int64(5)},
        maxTimeMS=1000.0,
        let={"a": 1},
        hint="x",
    )
    assert request.start == AtTime(Timestamp(7, 1))
    assert request.change_stream_options == {"showExpandedEvents": True}
    assert request.stages == ({"$match": {}},)
    assert (request.batch_size, request.max_time_ms) == (5, 1000)
    assert request.extras == {"let": {"a": 1}, "hint": "x"}
    assert not request.explain
    assert parse(cursor=..., explain=True).explain


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "bool"),
        (5, "int"),
        (2**40, "long"),
        (Int64(5), "long"),
        (1.5, "double"),
        ("x", "string"),
        ({}, "object"),
        ([], "array"),
        (b"", "binData"),
        (ObjectId(), "objectId"),
        (Timestamp(1, 1), "timestamp"),
        (Regex("a"), "regex"),
        (Decimal128("1"), "decimal"),
        (MaxKey(), "maxKey"),
        (None, "null"),
        (MinKey(), "minKey"),
        (DatetimeMS(0), "date"),
        (Code("f"), "javascript"),
        (Code("f", {}), "javascriptWithScope"),
    ],
)
def test_values_have_mongodb_s_type_names(value, name):
    assert type_name(value) == name


def test_documents_are_rendered_as_on_mongos():
    document = {"a": [1, "x", None], "b": {"c": False}, "t": Timestamp(1, 2), "d": b"\x01"}
    assert render(document) == (
        '{a: [1, "x", null], b: {c: false}, t: Timestamp(1, 2), d: BinData(0, "01")}'
    )


@pytest.mark.parametrize(
    ("stage", "no_document", "not_empty"),
    [("$_internalInhibitOptimization", 14, 9), ("$_internalShredDocuments", 7997500, 7997501)],
)
def test_clients_can_use_internal_stages_that_leave_events_as_they_are(
    stage: str, no_document: int, not_empty: int
):
    request = parse(**stream({stage: {}}))
    assert [*request.stages] == [{stage: {}}]
    for argument, code in ((5, no_document), ({"a": 1}, not_empty)):
        with pytest.raises(CommandError) as caught:
            parse(**stream({stage: argument}))
        assert caught.value.code == code
