"""Events that the lookup makes too large are split as by servers, and resume inside."""

import bson
import pytest
from bson import Timestamp

from router.lookup.fragments import MAX_WHOLE_BYTES, split, whole_events
from router.request.resume_point import ResumePoint
from shard_client.bson.resume_token import ResumeToken
from shard_client.errors import CommandError

MIB = 1 << 20


def token(second: int, fragment: str = "") -> dict[str, str]:
    """Return a version 2 token of an update: a real server's, with another cluster time."""
    operation = "3C" + b"operationType".hex() + "003C" + b"update".hex() + "00"
    key = "46" + b"documentKey".hex() + "00461E5F6964002B0200"
    front = f"82{second:08X}000000012B042C0100296E5A100403F05CE70E104BA9AEE379E26A21EBAD46"
    return {"_data": f"{front}{operation}{key}00{fragment}04".upper()}


def event(second: int = 1, **fields: object) -> bytes:
    return bson.encode(
        {
            "_id": token(second),
            "operationType": "update",
            "clusterTime": Timestamp(second, 1),
            "ns": {"db": "d", "coll": "c"},
            "documentKey": {"_id": 1},
            **fields,
        }
    )


LARGE = event(fullDocument={"_id": 1, "x": "a" * (9 * MIB)}, updateDescription={"x": "b" * 9 * MIB})


def after(fragment: str, second: int = 1) -> ResumePoint:
    return ResumePoint(ResumeToken.parse(token(second, fragment)))


def test_fragments_begin_with_small_fields_and_have_own_tokens():
    fragments = [bson.decode(each) for each in split(LARGE)]
    assert [each["_id"] for each in fragments] == [token(1, "29"), token(1, "2B02")]
    assert [each["splitEvent"] for each in fragments] == [
        {"fragment": 1, "of": 2},
        {"fragment": 2, "of": 2},
    ]
    assert list(fragments[0]) == [
        "_id", "splitEvent", "clusterTime", "operationType", "documentKey", "ns",
        "updateDescription",
    ]  # fmt: skip
    assert list(fragments[1]) == ["_id", "splitEvent", "fullDocument"]


def test_a_field_too_large_for_a_fragment_is_an_error():
    with pytest.raises(CommandError) as error:
        split(event(fullDocument={"x": "a" * MAX_WHOLE_BYTES}))
    assert error.value.code == 7182500


def test_joining_fragments_restores_the_event():
    before = event(
        updateDescription={"x": "b" * 9 * MIB}, fullDocumentBeforeChange={"x": "a" * 9 * MIB}, z=1
    )
    fragments = split(before)
    insert = bson.encode({"_id": token(2), "operationType": "insert"})
    [joined, other], counts = whole_events([*fragments, insert])
    assert joined == before, "with its fields in the order of servers"
    assert (other, counts) == (insert, [2, 1])
    assert whole_events([insert, fragments[0]]) == ([insert], [1])


@pytest.mark.parametrize(
    ("fragment", "comes", "message"),
    [
        ("29", event(1), "was not large enough to be split"),
        ("29", event(2), "the resume token was not found"),
        ("2B06", LARGE, "produced a different split"),
    ],
    ids=["small now", "not there", "fewer fragments"],
)
def test_a_missing_fragment_is_fatal_on_resuming(fragment: str, comes: bytes, message: str):
    with pytest.raises(CommandError) as error:
        after(fragment).drop_seen(split(comes))
    assert error.value.code == 280
    assert message in error.value.message
