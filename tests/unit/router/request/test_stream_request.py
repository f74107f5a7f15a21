"""Requests that the router knows; tests/integration/test_beside_mongos.py has mongos's errors."""

import pytest
from bson.timestamp import Timestamp

from router.request.stream_request import parse_request
from shard_client.errors import CommandError
from tests.unit.router.made_tokens import data_of

FRAGMENT = {"_data": data_of(1, 1, version=2)[:-2] + "2B0204"}


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
    command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, **fields}
    with pytest.raises(CommandError) as caught:
        parse_request("db", {name: value for name, value in command.items() if value is not ...})
    assert caught.value.code == 2
    assert reason in caught.value.message
    assert "--upstream" in caught.value.message
    assert len(caught.value.message) < 300
