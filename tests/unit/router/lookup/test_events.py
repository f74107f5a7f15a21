"""Events whose documents were looked up, whole and in fragments."""

import random
from datetime import UTC, datetime

import bson
import pytest
from bson import Timestamp
from bson.binary import Binary
from bson.raw_bson import RawBSONDocument

from router.lookup.event_splitting import MAX_WHOLE_BYTES, split, whole_events
from router.lookup.events import (
    MAX_EVENT_BYTES,
    _lookup_by_scanning,
    has_updates,
    lookup_of,
    with_document,
)
from router.lookup.keys import DocumentKey
from router.stream.readers.resume_point import ResumePoint
from shard_client.bson.resume_token import ResumeToken
from shard_client.errors import CommandError, ProtocolError
from tests.unit.router.made_tokens import data_of
from tests.unit.shard_client.bson_values import encoded

UUID_BYTES = bytes.fromhex("f877371811114fad9f113ad4a4c53acf")
# Recorded on a server: an update in t2.s, which is sharded by k.
TOKEN = (
    "826B021D9E000000202B022C0100296E5A1004F877371811114FAD9F113AD4A4C53ACF461E6B002B021E5F6964002B"
    "020004"
)
EVENT = {
    "_id": {"_data": TOKEN},
    "operationType": "update",
    "clusterTime": Timestamp(1795300766, 32),
    "ns": {"db": "t2", "coll": "s"},
    "documentKey": {"k": 1, "_id": 1},
    "updateDescription": {"updatedFields": {"v": 1}, "removedFields": [], "truncatedArrays": []},
}
HEAD = ("_id", "operationType", "clusterTime")


@pytest.mark.parametrize("missing", ["_id", "ns", "documentKey", "clusterTime"])
def test_a_malformed_update_is_an_error(missing):
    event = {name: value for name, value in EVENT.items() if name != missing}
    with pytest.raises(CommandError) as error:
        lookup_of(bson.encode(event))
    assert error.value.code == 40578


def test_an_event_that_becomes_too_large_is_an_error():
    event = bson.encode(EVENT)
    lookup = lookup_of(event)
    assert lookup is not None
    room = MAX_EVENT_BYTES - len(event) - len("\3fullDocument\0")
    empty = len(bson.encode({"x": ""}))
    fitting = bson.encode({"x": "a" * (room - empty)})
    assert len(with_document(event, lookup.place, fitting)) == MAX_EVENT_BYTES
    with pytest.raises(CommandError) as error:
        with_document(event, lookup.place, bson.encode({"x": "a" * (room - empty + 1)}))
    assert error.value.code == 10334
    assert TOKEN in error.value.message


SESSION = {"id": Binary(b"s" * 16, 4), "uid": b"u" * 32}


def random_event(chance: random.Random) -> bytes:
    """Return an event, often as servers write it; fields may be missing, or in any order."""
    kind = chance.choice(["update", "update", "insert", "replace", "delete", "updated", "drop", 7])
    fields = {
        "txnNumber": bson.Int64(3),
        "lsid": chance.choice([SESSION, {"id": SESSION["id"]}, {"operationType": "update"}]),
        "_id": chance.choice(
            [
                *[{"_data": TOKEN}] * 6,
                {"_data": TOKEN, "_typeBits": b"x"},
                {"_data": TOKEN, "operationType": "insert"},
                {"operationType": "update", "_data": TOKEN},
            ]
        ),
        "operationType": kind,
        "clusterTime": EVENT["clusterTime"],
        "collectionUUID": Binary(UUID_BYTES, 4),
        "wallTime": datetime(2026, 1, 1, tzinfo=UTC),
        "fullDocument": {"operationType": chance.choice(["insert", "update"]), "_id": 1},
        "ns": EVENT["ns"],
        "documentKey": EVENT["documentKey"],
        "updateDescription": {"updatedFields": {"operationType": "update"}},
    }
    kept = [name for name in fields if name in HEAD or chance.random() < 0.7]
    if chance.random() < 0.5:
        kept = [name for name in kept if name not in ("txnNumber", "lsid")]
    elif chance.random() < 0.3:
        chance.shuffle(kept)
        kept = kept[chance.randrange(3) :]
    return encoded({name: fields[name] for name in kept})


@pytest.mark.parametrize("seed", range(20))
def test_the_fast_path_decides_as_the_walk_over_all_fields(seed):
    chance = random.Random(seed)
    others = 0
    for _ in range(200):
        event = random_event(chance)
        try:
            scanned = _lookup_by_scanning(event)
        except ProtocolError:
            assert has_updates([event])
            with pytest.raises(CommandError):
                lookup_of(event)
            continue
        assert lookup_of(event) == scanned
        assert scanned is None or has_updates([event])
        others += not has_updates([event])
    assert others > 20


@pytest.mark.parametrize("text", ["a", "a\0", "a\0\0", "a\0\x10_id\0abc", "\0", ""])
@pytest.mark.parametrize(
    "key",
    [
        lambda text: {"_id": text},
        lambda text: {"k": 1, "_id": text},
        lambda text: {"k": text, "_id": 1},
        lambda text: {"k": text},
        lambda text: {"_id": 1, "k": text},
        lambda text: {"_id": Binary(text.encode(), 5), "k": 1},
    ],
)
def test_keys_with_texts_and_zeros_are_read_whole(text, key):
    document_key = encoded(key(text))
    event = bson.encode({**EVENT, "documentKey": RawBSONDocument(document_key)})
    lookup = lookup_of(event)
    assert lookup is not None
    assert lookup.key == DocumentKey.of(document_key)
    assert lookup.key.raw == document_key


MIB = 1 << 20


def token(second: int, fragment: str = "") -> dict[str, str]:
    """Return a version 2 token of an update."""
    whole = data_of(second, 1, version=2, operation="update")
    return {"_data": f"{whole.removesuffix('04')}{fragment}04"}


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
    after = ResumePoint(ResumeToken.parse(token(1, fragment)))
    with pytest.raises(CommandError) as error:
        after.drop_seen(split(comes))
    assert error.value.code == 280
    assert message in error.value.message
