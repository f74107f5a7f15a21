"""Openings that are refused or accepted (docs/protocol.md#opening); test_cases.py has the recorded
cases."""

import time
from collections.abc import Mapping
from typing import Any

import pymongo
import pytest
from bson import Int64, Timestamp
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.conformance.streams import CLUSTER, Stream, kinds, next_tick, now, refused
from tests.harness.clusters import Client, TestCluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router

rule = pytest.mark.rule
Data = Database[dict[str, Any]]

_UUID = "5A1004" + "AB" * 16
_TIME = "826B0001550000003D"


def opening(options: Mapping[str, Any], *stages: Mapping[str, Any], **fields: Any) -> Any:
    """Return an aggregate command that opens a change stream on ``a``."""
    return {
        "aggregate": fields.pop("aggregate", "a"),
        "pipeline": [{"$changeStream": dict(options)}, *stages],
        "cursor": {},
        **fields,
    }


def token(rest: str, **more: Any) -> dict[str, Any]:
    return {"resumeAfter": {"_data": _TIME + rest, **more}}


WRONG_TYPE = "an option of the wrong type: 14 TypeMismatch"


@rule("Opening", WRONG_TYPE)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fullDocument": 1},
            "BSON field '$changeStream.fullDocument' is the wrong type 'int', expected type "
            "'string'",
        ),
        (
            {"fullDocumentBeforeChange": True},
            "BSON field '$changeStream.fullDocumentBeforeChange' is the wrong type 'bool', "
            "expected type 'string'",
        ),
        (
            {"startAfter": "x"},
            "BSON field '$changeStream.startAfter' is the wrong type 'string', expected type "
            "'object'",
        ),
        (
            {"startAtOperationTime": 1.5},
            "BSON field '$changeStream.startAtOperationTime' is the wrong type 'double', expected "
            "type 'timestamp'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_of_wrong_types_are_refused(
    client: Client, options: dict[str, Any], message: str
) -> None:
    error = refused(client, "test", opening(options))
    assert (error["code"], error["codeName"], error["errmsg"]) == (14, "TypeMismatch", message)
    assert "errorLabels" not in error


@rule("Opening", WRONG_TYPE)
@pytest.mark.parametrize(
    "flag", ["allChangesForCluster", "showExpandedEvents", "showMigrationEvents"]
)
def test_flags_of_wrong_types_are_refused(client: Client, flag: str) -> None:
    error = refused(client, "test", opening({flag: "yes"}))
    assert (error["code"], error["codeName"]) == (14, "TypeMismatch")
    assert flag in error["errmsg"]


@rule("Opening", "on admin without allChangesForCluster; on config: 73")
@rule("Sharded cluster", "a client cannot open a stream on config.shards")
@pytest.mark.parametrize(
    ("database", "target", "options"),
    [
        ("admin", 1, {}),
        ("admin", "a", {}),
        ("config", 1, {}),
        ("config", "shards", {}),
        ("config", "shards", {"showExpandedEvents": True}),
    ],
)
def test_internal_databases_cannot_be_watched(
    client: Client, database: str, target: str | int, options: dict[str, Any]
) -> None:
    error = refused(client, database, opening(options, aggregate=target))
    assert (error["code"], error["codeName"]) == (73, "InvalidNamespace")
    assert error["errmsg"] == f"$changeStream may not be opened on the internal {database} database"


@rule("Opening", "allChangesForCluster elsewhere than {aggregate: 1} on admin: 72")
@pytest.mark.parametrize(("database", "target"), [("test", 1), ("test", "a"), ("admin", "a")])
def test_cluster_streams_must_be_on_admin(client: Client, database: str, target: str | int) -> None:
    error = refused(client, database, opening(CLUSTER, aggregate=target))
    assert (error["code"], error["codeName"]) == (72, "InvalidOptions")


@rule("Opening", "fromMongos from a client: 51089; needsMerge alone: 9")
@pytest.mark.parametrize("flags", [{"fromMongos": True}, {"fromMongos": True, "needsMerge": True}])
def test_internal_flags_are_refused(client: Client, flags: dict[str, Any]) -> None:
    assert refused(client, "test", opening({}, **flags))["code"] == 51089


@rule("Opening", "an internal stage: 5491300")
@pytest.mark.parametrize(
    "stage", ["$_internalChangeStreamTransform", "$_internalChangeStreamUnwindTransaction"]
)
def test_internal_stages_are_refused(client: Client, stage: str) -> None:
    for pipeline in ([{stage: {}}], [{"$changeStream": {}}, {stage: {}}]):
        command = {"aggregate": "a", "pipeline": pipeline, "cursor": {}}
        error = refused(client, "test", command)
        assert error["code"] == 5491300
        assert error["errmsg"] == f"{stage}' is not allowed in user requests"


@rule("Opening", "a stage not allowed in change streams: 20; an unknown one: 40324")
@pytest.mark.parametrize(
    "stage",
    [
        {"$count": "n"},
        {"$facet": {"a": []}},
        {"$group": {"_id": 1}},
        {"$limit": 1},
        {"$lookup": {"from": "b", "localField": "a", "foreignField": "b", "as": "c"}},
        {"$merge": "b"},
        {"$out": "b"},
        {"$sample": {"size": 1}},
        {"$skip": 1},
        {"$sort": {"a": 1}},
        {"$sortByCount": "$a"},
        {"$unionWith": "b"},
        {"$unwind": "$a"},
        {"$bucketAuto": {"groupBy": "$a", "buckets": 2}},
        {"$graphLookup": {}},
    ],
    ids=lambda stage: next(iter(stage)),
)
def test_stages_not_allowed_in_change_streams_are_refused(
    client: Client, db: Data, stage: dict[str, Any]
) -> None:
    db.create_collection("a")  # stages that name another collection require the database
    name = next(iter(stage))
    if name in ("$graphLookup", "$bucketAuto", "$sortByCount", "$count"):
        # Some of these are parsed or rewritten before they are checked against the allowed stages.
        assert refused(client, db.name, opening({}, stage))["code"]
        return
    error = refused(client, db.name, opening({}, stage))
    assert (error["code"], error["codeName"]) == (20, "IllegalOperation")
    assert error["errmsg"] == f"{name} is not permitted in a $changeStream pipeline"


@rule("Opening", "in a transaction: 263")
def test_a_stream_in_a_transaction_is_refused(client: Client, db: Data) -> None:
    with client.start_session() as session:
        session.start_transaction()
        with pytest.raises(OperationFailure) as caught:
            db.command(opening({}), session=session)
        session.abort_transaction()
    assert caught.value.code == 263


@rule("Opening", "read concern other than majority: 72")
@pytest.mark.parametrize("level", ["local", "available", "snapshot", "linearizable"])
def test_read_concerns_other_than_majority_are_refused(client: Client, level: str) -> None:
    error = refused(client, "test", opening({}, readConcern={"level": level}))
    assert (error["code"], error["codeName"]) == (72, "InvalidOptions")
    assert f"Current readConcern: {level}" in error["errmsg"]


@rule("Opening", "on a view: 166")
def test_a_stream_on_a_view_is_refused(client: Client, db: Data) -> None:
    db.create_collection("a")
    db.create_collection("v", viewOn="a", pipeline=[])
    error = refused(client, db.name, opening({}, aggregate="v"))
    assert (error["code"], error["codeName"]) == (166, "CommandNotSupportedOnView")
    assert error["errmsg"] == f"Namespace {db.name}.v is a view, not a collection"


@rule("Opening", "on a time-series collection: 166")
def test_a_stream_on_a_time_series_collection_is_refused(client: Client, db: Data) -> None:
    db.create_collection("t", timeseries={"timeField": "at"})
    error = refused(client, db.name, opening({}, aggregate="t"))
    assert (error["code"], error["codeName"]) == (166, "CommandNotSupportedOnView")
    assert error["errmsg"] == f"Namespace {db.name}.t is a timeseries collection"


@rule("Opening", "on a system. collection: 73")
@pytest.mark.parametrize("name", ["system.profile", "system.buckets.t", "system.js"])
def test_streams_on_system_collections_are_refused(client: Client, name: str) -> None:
    error = refused(client, "test", opening({}, aggregate=name))
    assert (error["code"], error["codeName"]) == (73, "InvalidNamespace")


@rule("Opening", "missing collections and databases can be watched, which does not create them")
def test_missing_collections_and_databases_can_be_watched(client: Client, db: Data) -> None:
    with Stream(client, db.name, "later") as one, Stream(client, db.name) as all_of_it:
        assert db.name not in client.list_database_names()
        db.later.insert_one({"_id": 1})
        assert kinds(one.read(1)) == kinds(all_of_it.read(1)) == ["insert"]


@rule("Opening", "comment, hint, allowDiskUse, maxTimeMS are accepted")
@pytest.mark.parametrize(
    "fields",
    [
        {"comment": "why"},
        {"comment": {"a": 1}},
        {"hint": "_id_"},
        {"allowDiskUse": True},
        {"maxTimeMS": 5000},
        {"readConcern": {"level": "majority"}},
        {"bypassDocumentValidation": False},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_of_the_aggregate_are_accepted(
    client: Client, db: Data, fields: dict[str, Any]
) -> None:
    db.create_collection("a")
    with Stream(client, db.name, "a", **fields) as stream:
        db.a.insert_one({"_id": 1})
        assert kinds(stream.read(1)) == ["insert"]


@rule("Opening", "readPreference chooses the members that shards are read from")
@pytest.mark.parametrize("mode", ["secondaryPreferred", "nearest", "primaryPreferred"])
def test_read_preferences_are_accepted(router: RouterProcess, db: Data, mode: str) -> None:
    client: Client
    with (
        pymongo.MongoClient(router.uri, readPreference=mode) as client,
        client[db.name].a.watch(max_await_time_ms=100) as stream,
    ):
        db.a.insert_one({"_id": 1})
        assert stream.next()["documentKey"] == {"_id": 1}


@rule("Opening", "an invalid read preference: 2, 4, 14, 160")
@pytest.mark.parametrize(
    ("preference", "code"),
    [
        ("nearest", 14),
        ({}, 4),
        ({"mode": "all"}, 2),
        ({"mode": "primary", "tags": [{"dc": "a"}]}, 2),
        ({"mode": "nearest", "maxStalenessSeconds": 1}, 160),
    ],
    ids=str,
)
async def test_invalid_read_preferences_are_refused(
    router: RouterProcess, preference: object, code: int
) -> None:
    async with await RawClient.connect(router.port) as raw:
        error = await raw.command("test", opening({}, **{"$readPreference": preference}))
    assert (error["ok"], error["code"], error.get("errorLabels")) == (0, code, None)


@rule("Opening", "readPreference chooses the members that shards are read from")
@rule("Opening", "ResumableChangeStreamError on codes that clients may resume after")
def test_a_read_preference_without_a_matching_member_is_retriable(
    cluster: TestCluster, db: Data
) -> None:
    """One-member shards have no secondaries, so the opening fails with a retriable error."""
    parameters = {"openTimeoutMs": 700}
    client: Client
    with (
        start_router(cluster.configdb, set_parameter=parameters) as router,
        pymongo.MongoClient(router.uri) as client,
    ):
        error = refused(client, db.name, opening({}, **{"$readPreference": {"mode": "secondary"}}))
    assert (error["code"], error["codeName"]) == (133, "FailedToSatisfyReadPreference")
    assert error["errorLabels"] == ["ResumableChangeStreamError"]


TYPES = (
    "50796, 50854, 51055-51057, 50793-50794, 50855, 50870, 50872, 6189500-6189505: "
    "a field of the wrong type or out of range"
)
OVERSIZED = "40646 and Overflow 15: oversized and truncated tokens"
NO_BINDATA = "40648: _typeBits not BinData"
NO_HEX = "9 FailedToParse: not a hex string"
NOT_A_STRING = "40647: _data missing or not a string"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param({"resumeAfter": {}}, 40647, marks=rule("Resume tokens", NOT_A_STRING)),
        pytest.param(
            {"startAfter": {"_data": Int64(5)}}, 40647, marks=rule("Resume tokens", NOT_A_STRING)
        ),
        pytest.param(
            token("2B0229296E04", _typeBits="x"), 40648, marks=rule("Resume tokens", NO_BINDATA)
        ),
        pytest.param({"resumeAfter": {"_data": "not hex"}}, 9, marks=rule("Resume tokens", NO_HEX)),
        pytest.param(
            {"resumeAfter": {"_data": ""}}, 40649, marks=rule("Resume tokens", "40649: empty")
        ),
        pytest.param(token("2B0629296E1404"), 50795, marks=rule("Resume tokens", "50795: version")),
        # A missing version, a version that is a string, and likewise for each field.
        pytest.param(
            {"resumeAfter": {"_data": _TIME + "04"}}, 50796, marks=rule("Resume tokens", TYPES)
        ),
        pytest.param(token("3C610004"), 50854, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B0204"), 51055, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B023C610004"), 51056, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022B0204"), 51057, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C010004"), 50793, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C01003C610004"), 50855, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C010027FD04"), 50794, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C01002904"), 50872, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C0100293C610004"), 50870, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B042C0100296E04"), 6189500, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B042C0100296E1404"), 6189501, marks=rule("Resume tokens", TYPES)),
        pytest.param(
            token("2B022C0100296E" + _UUID + "2904"), 6189503, marks=rule("Resume tokens", TYPES)
        ),
        pytest.param(
            token("2B0229296E" + _UUID + "460004"), 6189504, marks=rule("Resume tokens", TYPES)
        ),
        pytest.param(
            {"resumeAfter": {"_data": "826B0001"}}, 15, marks=rule("Resume tokens", OVERSIZED)
        ),
        pytest.param(
            token("2B022C0100296E" + _UUID + "46002904"),
            40646,
            marks=rule("Resume tokens", OVERSIZED),
        ),
    ],
)
def test_bad_tokens_are_refused(client: Client, options: dict[str, Any], code: int) -> None:
    error = refused(client, "test", opening(options, aggregate=1))
    assert error["code"] == code, error


ALLOWED = (
    "stages allowed: $match, $project, $addFields, $set, $unset, $replaceRoot, $replaceWith, "
    "$redact, $changeStreamSplitLargeEvent"
)


@rule("Opening", ALLOWED)
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ({"$match": {"documentKey._id": {"$gt": 1}}}, [2, 3]),
        ({"$match": {"$expr": {"$eq": ["$fullDocument.a", 20]}}}, [2]),
        ({"$match": {"$or": [{"fullDocument.a": 10}, {"documentKey._id": 3}]}}, [1, 3]),
        ({"$project": {"documentKey": 1}}, [1, 2, 3]),
        ({"$project": {"fullDocument": 0}}, [1, 2, 3]),
        ({"$addFields": {"more": {"$add": ["$fullDocument.a", 1]}}}, [1, 2, 3]),
        ({"$set": {"fullDocument.b": "x"}}, [1, 2, 3]),
        ({"$unset": ["fullDocument", "ns"]}, [1, 2, 3]),
        ({"$replaceRoot": {"newRoot": {"_id": "$_id", "documentKey": "$documentKey"}}}, [1, 2, 3]),
        ({"$replaceWith": {"$mergeObjects": ["$$ROOT", {"a": 1}]}}, [1, 2, 3]),
        ({"$redact": {"$cond": [{"$eq": ["$documentKey._id", 1]}, "$$PRUNE", "$$KEEP"]}}, [2, 3]),
        ({"$changeStreamSplitLargeEvent": {}}, [1, 2, 3]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_allowed_stages_run(
    client: Client, db: Data, stage: dict[str, Any], expected: list[int]
) -> None:
    with Stream(client, db.name, "a", {}, [stage]) as stream:
        db.a.insert_many([{"_id": number, "a": 10 * number} for number in (1, 2, 3)])
        stream.past(now(client))
        assert [event["documentKey"]["_id"] for event in stream.events] == expected
        for event in stream.events:
            check_stage(stage, event)


def check_stage(stage: dict[str, Any], event: dict[str, Any]) -> None:
    match stage:
        case {"$project": {"documentKey": 1}}:
            assert list(event) == ["_id", "documentKey"]
        case {"$project": {"fullDocument": 0}}:
            assert "fullDocument" not in event
        case {"$addFields": _}:
            assert event["more"] == event["fullDocument"]["a"] + 1
        case {"$set": _}:
            assert event["fullDocument"]["b"] == "x"
        case {"$unset": names}:
            assert not {*names} & event.keys()
        case {"$replaceRoot": _}:
            assert list(event) == ["_id", "documentKey"]
        case {"$replaceWith": _}:
            assert event["a"] == 1


@rule("Opening", "pipeline changed an event's _id: 280")
@rule("Opening", "NonResumableChangeStreamError on 280 and 286")
@pytest.mark.parametrize(
    "stage",
    [
        {"$project": {"_id": 0}},
        {"$project": {"_id._data": 0}},
        {"$addFields": {"_id": "x"}},
        {"$set": {"_id": {"_data": "$_id._data", "more": 1}}},
        {"$unset": "_id"},
        {"$replaceRoot": {"newRoot": "$fullDocument"}},
        {"$replaceWith": {"a": 1}},
        {"$replaceWith": {"_id": "$_id._data"}},
    ],
    ids=repr,
)
def test_a_modified_event_id_is_fatal(client: Client, db: Data, stage: dict[str, Any]) -> None:
    with Stream(client, db.name, "a", {}, [stage]) as stream:
        db.a.insert_one({"_id": 1, "a": 1})
        error = stream.failure()
    assert (error["code"], error["codeName"]) == (280, "ChangeStreamFatalError")
    assert error["errorLabels"] == ["NonResumableChangeStreamError"]
    assert (
        "Encountered an event whose _id field, which contains the resume token, was modified"
        in (error["errmsg"])
    )


@rule("Opening", "collation applies to the user's stages")
def test_the_collation_applies_to_the_user_s_stages(client: Client, db: Data) -> None:
    match = [{"$match": {"fullDocument.a": "x"}}]
    insensitive = {"locale": "en", "strength": 2}
    with (
        Stream(client, db.name, "a", {}, match) as simple,
        Stream(client, db.name, "a", {}, match, collation=insensitive) as folded,
    ):
        db.a.insert_many([{"_id": 1, "a": "X"}, {"_id": 2, "a": "x"}])
        end = now(client)
        assert [event["documentKey"]["_id"] for event in simple.past(end)] == [2]
        assert [event["documentKey"]["_id"] for event in folded.past(end)] == [1, 2]


@rule("Opening", "let's variables work in the user's stages")
def test_let_variables_work_in_the_user_s_stages(client: Client, db: Data) -> None:
    match = [{"$match": {"$expr": {"$eq": ["$fullDocument.a", "$$wanted"]}}}]
    with Stream(client, db.name, "a", {}, match, let={"wanted": 2}) as stream:
        db.a.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])
        assert [event["documentKey"]["_id"] for event in stream.past(now(client))] == [2]


@rule("Opening", "API version 1, strict: 323 for options that are not in it")
@pytest.mark.parametrize("option", ["showExpandedEvents", "showSystemEvents"])
def test_the_strict_api_refuses_newer_options(client: Client, option: str) -> None:
    strict = {"apiVersion": "1", "apiStrict": True}
    error = refused(client, "test", opening({option: True}, **strict))
    assert (error["code"], error["codeName"]) == (323, "APIStrictError")


@rule("Sharded cluster", "events that look like those of config.shards are harmless")
def test_forged_topology_events_are_harmless(client: Client, db: Data) -> None:
    forged = {
        "operationType": "insert",
        "ns": {"db": "config", "coll": "shards"},
        "documentKey": {"_id": "evil"},
        "fullDocument": {"_id": "evil", "host": "evil/127.0.0.1:1"},
    }
    forge = [{"$addFields": {name: {"$literal": value} for name, value in forged.items()}}]
    with Stream(client, db.name, "a", {}, forge) as stream:
        began = time.monotonic()
        for number in range(5):
            db.a.insert_one({"_id": number})
        events = stream.read(5)
        assert all(event["fullDocument"] == forged["fullDocument"] for event in events)
        assert time.monotonic() - began < 10
    detected = [{"$addFields": {"operationType": "kNewShardDetected"}}]
    with Stream(client, db.name, "a", {}, detected) as stream:
        db.a.insert_one({"_id": 9})
        assert kinds(stream.read(1)) == ["kNewShardDetected"]


@rule("Opening", "required image missing: 47")
@pytest.mark.parametrize("option", ["fullDocument", "fullDocumentBeforeChange"])
def test_a_missing_required_image_is_an_error(client: Client, db: Data, option: str) -> None:
    db.create_collection("a")
    with Stream(client, db.name, "a", {option: "required"}) as stream:
        db.a.insert_one({"_id": 1})
        db.a.update_one({"_id": 1}, {"$set": {"b": 1}})
        error = stream.failure()
    assert (error["code"], error["codeName"]) == (47, "NoMatchingDocument")
    image = "post-image" if option == "fullDocument" else "pre-image"
    assert f"the {image} was not found for event" in error["errmsg"]


@rule("Opening", "startAtOperationTime and a token: 40674")
def test_a_start_time_and_a_token_together_are_refused(client: Client) -> None:
    options = {**token("2B0229296E04"), "startAtOperationTime": next_tick(Timestamp(1, 1))}
    assert refused(client, "test", opening(options))["code"] == 40674


INSIDE = "an invalid stage fails the opening; an error on an event fails the getMore"


@rule("Opening", INSIDE)
@pytest.mark.parametrize(
    "stage",
    [
        {"$match": {"$nope": 1}},
        {"$match": {"a": {"$nope": 1}}},
        {"$match": {"$expr": {"$nope": 1}}},
        {"$project": {}},
        {"$project": {"a": {"$nope": 1}}},
        {"$project": {"a": 1, "b": 0}},
        {"$addFields": 1},
        {"$addFields": {"a": {"$nope": 1}}},
        {"$unset": 1},
        {"$replaceRoot": {}},
        {"$replaceWith": {"$nope": 1}},
        {"$redact": {"$nope": 1}},
    ],
    ids=repr,
)
def test_an_invalid_stage_fails_the_opening(
    client: Client, db: Data, stage: dict[str, Any]
) -> None:
    error = refused(client, db.name, opening({}, stage))
    assert error["code"] > 1
    assert "errorLabels" not in error


@rule("Opening", INSIDE)
@rule("Opening", "a failed cursor is closed")
def test_an_error_on_an_event_fails_the_get_more(client: Client, db: Data) -> None:
    divide = [{"$addFields": {"a": {"$divide": [1, "$fullDocument.zero"]}}}]
    with Stream(client, db.name, "a", {}, divide) as stream:
        db.a.insert_one({"_id": 1, "zero": 1})
        assert stream.read(1)[0]["a"] == 1
        db.a.insert_one({"_id": 2, "zero": 0})
        error = stream.failure()
        assert error["code"] not in (1, 43)
        assert "errorLabels" not in error
        assert stream.failure()["code"] == 43


RESUMABLE = [6, 7, 63, 89, 91, 133, 134, 150, 189, 234, 262, 9001, 10107, 11600, 11602]
RESUMABLE += [13388, 13435, 13436]
STATE_CHANGES = [91, 189, 10107, 11600, 11602, 13435, 13436]


@rule("Opening", "ResumableChangeStreamError on codes that clients may resume after")
@rule("Opening", "NonResumableChangeStreamError on 280 and 286")
@rule("Opening", "a shard's change of state is reported as 6 HostUnreachable")
async def test_errors_have_the_labels_of_their_codes(router: RouterProcess, db: Data) -> None:
    async with await RawClient.connect(router.port) as raw:
        for code in [*RESUMABLE, 280, 286, 43, 11601]:
            cursor_id = (await raw.command(db.name, opening({})))["cursor"]["id"]
            fail_point = {
                "configureFailPoint": "failGetMoreAfterCursorCheckout",
                "mode": {"times": 1},
                "data": {"errorCode": code},
            }
            assert (await raw.command("admin", fail_point))["ok"]
            error = await raw.command(db.name, {"getMore": cursor_id, "collection": "a"})
            expected = ["ResumableChangeStreamError"] if code in RESUMABLE else []
            if code in (280, 286):
                expected = ["NonResumableChangeStreamError"]
            told = 6 if code in STATE_CHANGES else code
            assert (error["code"], error.get("errorLabels", [])) == (told, expected)
            await raw.command(db.name, {"killCursors": "a", "cursors": [cursor_id]})


@rule("Opening", "inside another stage's pipeline: 51047, 40600, 31441")
@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$lookup": {"from": "b", "as": "x", "pipeline": [{"$changeStream": {}}]}}, 51047),
        ({"$facet": {"x": [{"$changeStream": {}}]}}, 40600),
        ({"$unionWith": {"coll": "b", "pipeline": [{"$changeStream": {}}]}}, 31441),
        (
            {
                "$lookup": {
                    "from": "b",
                    "as": "x",
                    "pipeline": [
                        {"$match": {}},
                        {"$lookup": {"from": "c", "as": "y", "pipeline": [{"$changeStream": {}}]}},
                    ],
                }
            },
            51047,
        ),
    ],
    ids=["$lookup", "$facet", "$unionWith", "$lookup in $lookup"],
)
def test_a_change_stream_inside_another_stage_is_refused(
    client: Client, db: Data, stage: dict[str, Any], code: int
) -> None:
    db.a.insert_one({"_id": 1})
    error = refused(client, db.name, {"aggregate": "a", "pipeline": [stage], "cursor": {}})
    assert error["code"] == code


@rule("Opening", "on a system. collection: 73")
def test_names_similar_to_system_collections_can_be_watched(client: Client, db: Data) -> None:
    """Only names that begin with ``system.`` are reserved."""
    for name in ("systemindexes", "system_users", "a.system"):
        with Stream(client, db.name, name) as stream:
            db[name].insert_one({"_id": name})
            assert kinds(stream.read(1)) == ["insert"]
