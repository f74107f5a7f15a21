"""Requests that the router knows; tests/integration/test_beside_mongos.py has mongos's errors."""

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

from router.bson_text import type_name
from router.request.stream_request import AtTime, parse_request
from shard_client.errors import CommandError
from tests.unit.router.made_tokens import data_of

FRAGMENT = {"_data": data_of(1, 1, version=2)[:-2] + "2B0204"}


def parse(database: str = "db", **fields):
    command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, **fields}
    return parse_request(database, {k: v for k, v in command.items() if v is not ...})


def stream(*stages, **options):
    return {"pipeline": [{"$changeStream": options}, *stages]}


STRICT = {"apiVersion": "1", "apiStrict": True}
SPLIT = {"$changeStreamSplitLargeEvent": {}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *(({"aggregate": name}, "aggregate: ") for name in (2, True, None, "", ".c", "a\0b")),
        ({"pipeline": ...}, "no pipeline or no cursor"),
        ({"cursor": ...}, "no pipeline or no cursor"),
        ({"pipeline": {}}, "pipeline: {}"),
        ({"pipeline": []}, "a pipeline that begins with {}"),
        ({"pipeline": [{"$match": {}}, {"$changeStream": {}}]}, "begins with {$match: {}}"),
        ({"pipeline": [{"$changeStream": 5}]}, "begins with {$changeStream: 5}"),
        *(
            ({name: value}, f"{name}: ")
            for name, value in (
                ("cursor", None), ("cursor", {"batchSize": "x"}), ("cursor", {"batchSize": True}),
                ("cursor", {"batchSize": -1}), ("cursor", {"x": 1}), ("maxTimeMS", -1),
                ("maxTimeMS", "1"), ("maxTimeMS", 1.5), ("collation", 5), ("allowDiskUse", 1),
                ("allowDiskUse", None), ("$_passthroughToShard", {}), ("hint", 5),
                ("autocommit", False), ("startTransaction", True), ("needsMerge", True),
                ("collectionUUID", 5), ("fieldOfALaterVersion", 1),
                ("readConcern", {}), ("readConcern", {"level": "local"}), ("readConcern", {"x": 1}),
                ("readConcern", {"afterClusterTime": Timestamp(0, 0)}),
                *(
                    ("$readPreference", each)
                    for each in (
                        "nearest", {}, {"mode": 1}, {"mode": "Primary"},
                        {"mode": "primary", "tags": [{"dc": "a"}]},
                        {"mode": "primary", "maxStalenessSeconds": 90},
                        {"mode": "primary", "hedge": {}},
                        *(
                            {"mode": "nearest", **more}
                            for more in (
                                {"maxStalenessSeconds": 89}, {"maxStalenessSeconds": -1},
                                {"tags": "a"}, {"tags": ["a"]}, {"tags": [{"a": 1}]}, {"hedge": 5},
                                {"hedge": {"enabled": 1}}, {"hedge": {"x": True}},
                            )
                        ),
                    )
                ),
            )
        ),
        *(
            (stream(**{name: value}), f"$changeStream.{name}: ")
            for name, value in (
                ("allChangesForCluster", 1), ("fullDocument", 5), ("fullDocument", "x"),
                ("resumeAfter", "82"), ("showMigrationEvents", True), ("optionOfALaterVersion", 1),
            )
        ),
        *(
            (stream(*stages), "the stage {")
            for stages in (
                ({},), ({"$match": {}, "$set": {}},), ({"$match": 5},), ({"$limit": 1},),
                ({"$densify": {}},), ({"$changeStream": {}},), ({"$_internalSplitPipeline": {}},),
                ({"$changeStreamSplitLargeEvent": 1},), (SPLIT, {"$match": {}}),
                ({"$_internalInhibitOptimization": 5},), ({"$_internalShredDocuments": 5},),
            )
        ),
        (stream({"$_internalShredDocuments": {}}, SPLIT), "after an internal stage"),
        ({**stream(SPLIT), **STRICT}, "the stage {$changeStreamSplit"),
        ({**stream(showExpandedEvents=True), **STRICT}, "apiStrict and showExpandedEvents"),
        *(({"explain": each, **STRICT}, "apiStrict and explain") for each in (True, None)),
        (stream(resumeAfter=FRAGMENT, startAfter=FRAGMENT), "more than one start"),
        (stream(allChangesForCluster=True), "allChangesForCluster on db.c"),
        ({"aggregate": "system.profile"}, "the internal collection db.system.profile"),
    ],
)  # fmt: skip
def test_requests_with_something_unknown_are_refused(fields, reason):
    with pytest.raises(CommandError) as caught:
        parse(**fields)
    assert caught.value.code == 2
    assert reason in caught.value.message
    assert "--upstream" in caught.value.message
    assert len(caught.value.message) < 300


def test_a_fragment_s_token_requires_the_stage_that_splits():
    with pytest.raises(CommandError, match="must include a") as caught:
        parse(**stream(resumeAfter=FRAGMENT))
    assert caught.value.code == 280


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
    assert parse(hint=None, collation=None, let=None).max_time_ms is None


@pytest.mark.parametrize(
    "more", [{"hedge": {"enabled": True}}, {"hedge": {}}, {"tags": [{"dc": "a"}, {}]}, {"x": 1}]
)
def test_read_preferences_of_drivers_are_kept(more):
    preference = {"mode": "nearest", "maxStalenessSeconds": 90, **more}
    assert parse(**{"$readPreference": preference}).read_preference == preference


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


@pytest.mark.parametrize("stage", ["$_internalInhibitOptimization", "$_internalShredDocuments"])
def test_clients_can_use_internal_stages_that_leave_events_as_they_are(stage: str):
    assert [*parse(**stream({stage: {}})).stages] == [{stage: {}}]
