"""Openings that are refused or accepted (docs/protocol.md#opening).

test_cases.py has the recorded cases, test_stages.py the stages, test_bad_tokens.py the tokens.
"""

from typing import Any

import pymongo
import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.conformance.streams import CLUSTER, Stream, kinds, opening, refused
from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router

rule = pytest.mark.rule
Data = Database[dict[str, Any]]
WRONG_TYPE = "an option of the wrong type: 14 TypeMismatch"
RESUMABLE = [
    *(6, 7, 63, 89, 91, 133, 134, 150, 189, 234, 262, 9001, 10107, 11600, 11602),
    *(13388, 13435, 13436),
]
STATE_CHANGES = [91, 189, 10107, 11600, 11602, 13435, 13436]


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


@on_real_servers("time series")
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


@rule("Opening", "API version 1, strict: 323 for options that are not in it")
@pytest.mark.parametrize("option", ["showExpandedEvents", "showSystemEvents"])
def test_the_strict_api_refuses_newer_options(client: Client, option: str) -> None:
    strict = {"apiVersion": "1", "apiStrict": True}
    error = refused(client, "test", opening({option: True}, **strict))
    assert (error["code"], error["codeName"]) == (323, "APIStrictError")


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


@rule("Opening", "on a system. collection: 73")
def test_names_similar_to_system_collections_can_be_watched(client: Client, db: Data) -> None:
    """Only names that begin with ``system.`` are reserved."""
    for name in ("systemindexes", "system_users", "a.system"):
        with Stream(client, db.name, name) as stream:
            db[name].insert_one({"_id": name})
            assert kinds(stream.read(1)) == ["insert"]
