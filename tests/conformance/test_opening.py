"""Openings that are refused or accepted, with tokens too (docs/protocol.md#opening).

test_cases.py has the recorded cases, test_stages.py the stages.
"""

from typing import Any

import pytest
from pymongo.database import Database

from tests.conformance.streams import Stream, opening, refused
from tests.harness.clusters import Client
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess

Data = Database[dict[str, Any]]
RESUMABLE = [
    *(6, 7, 63, 89, 91, 133, 134, 150, 189, 234, 262, 9001, 10107, 11600, 11602),
    *(13388, 13435, 13436),
]
STATE_CHANGES = [91, 189, 10107, 11600, 11602, 13435, 13436]


@pytest.mark.parametrize("mode", ["secondaryPreferred", "nearest", "primaryPreferred"])
def test_read_preferences_are_accepted(router: RouterProcess, db: Data, mode: str) -> None:
    with (
        Client(router.uri, readPreference=mode) as client,
        client[db.name].a.watch(max_await_time_ms=100) as stream,
    ):
        db.a.insert_one({"_id": 1})
        assert stream.next()["documentKey"] == {"_id": 1}


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


_UUID = "5A1004" + "AB" * 16
_START = "826B0001550000003D"
# A missing version, a version that is a string, and likewise for each field.
CODES = {
    "04": 50796, "3C610004": 50854, "2B0204": 51055, "2B023C610004": 51056, "2B022B0204": 51057,
    "2B022C010004": 50793, "2B022C01003C610004": 50855, "2B022C010027FD04": 50794,
    "2B022C01002904": 50872, "2B022C0100293C610004": 50870, "2B042C0100296E04": 6189500,
    "2B042C0100296E1404": 6189501, f"2B022C0100296E{_UUID}2904": 6189503,
    f"2B0229296E{_UUID}460004": 6189504, f"2B022C0100296E{_UUID}46002904": 40646,
}  # fmt: skip
"""What follows the time in a token, and the code of its error."""


@pytest.mark.parametrize(
    ("token", "code"), [("826B0001", 15), *((_START + rest, code) for rest, code in CODES.items())]
)
def test_malformed_tokens_are_refused(client: Client, token: str, code: int) -> None:
    error = refused(client, "test", opening({"resumeAfter": {"_data": token}}, aggregate=1))
    assert error["code"] == code, error
