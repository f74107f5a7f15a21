"""Openings that are refused or accepted (docs/protocol.md#opening).

test_cases.py has the recorded cases, test_stages.py the stages, test_bad_tokens.py the tokens.
"""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.streams import Stream, opening, refused
from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router

rule = pytest.mark.rule
Data = Database[dict[str, Any]]
RESUMABLE = [
    *(6, 7, 63, 89, 91, 133, 134, 150, 189, 234, 262, 9001, 10107, 11600, 11602),
    *(13388, 13435, 13436),
]
STATE_CHANGES = [91, 189, 10107, 11600, 11602, 13435, 13436]


@rule("Opening", "readPreference chooses the members that shards are read from")
@pytest.mark.parametrize("mode", ["secondaryPreferred", "nearest", "primaryPreferred"])
def test_read_preferences_are_accepted(router: RouterProcess, db: Data, mode: str) -> None:
    with (
        Client(router.uri, readPreference=mode) as client,
        client[db.name].a.watch(max_await_time_ms=100) as stream,
    ):
        db.a.insert_one({"_id": 1})
        assert stream.next()["documentKey"] == {"_id": 1}


@on_real_servers("checks of change streams' requests")
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
    with (
        start_router(cluster.configdb, set_parameter=parameters) as router,
        Client(router.uri) as client,
    ):
        error = refused(client, db.name, opening({}, **{"$readPreference": {"mode": "secondary"}}))
    assert (error["code"], error["codeName"]) == (133, "FailedToSatisfyReadPreference")
    assert error["errorLabels"] == ["ResumableChangeStreamError"]


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
