"""The lookup of an update event, and the insertion of the document found."""

import random
from datetime import UTC, datetime

import bson
import pytest
from bson import Timestamp
from bson.binary import Binary
from bson.raw_bson import RawBSONDocument

from router.lookup.events import (
    MAX_EVENT_BYTES,
    _wanted_by_scanning,
    has_updates,
    wanted,
    with_document,
)
from router.lookup.keys import DocumentKey
from shard_client.errors import CommandError, ProtocolError

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


def encoded(document):
    """Encode an inner document, since the encoder moves ``_id`` first in an outer one."""
    return bson.encode({"d": document})[len(b"....\x03d\0") : -1]


@pytest.mark.parametrize("missing", ["_id", "ns", "documentKey", "clusterTime"])
def test_a_malformed_update_is_an_error(missing):
    event = {name: value for name, value in EVENT.items() if name != missing}
    with pytest.raises(CommandError) as error:
        wanted(bson.encode(event))
    assert error.value.code == 40578


def test_an_event_that_becomes_too_large_is_an_error():
    event = bson.encode(EVENT)
    want = wanted(event)
    assert want is not None
    room = MAX_EVENT_BYTES - len(event) - len("\3fullDocument\0")
    empty = len(bson.encode({"x": ""}))
    fitting = bson.encode({"x": "a" * (room - empty)})
    assert len(with_document(event, want.place, fitting)) == MAX_EVENT_BYTES
    with pytest.raises(CommandError) as error:
        with_document(event, want.place, bson.encode({"x": "a" * (room - empty + 1)}))
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
            scanned = _wanted_by_scanning(event)
        except ProtocolError:
            assert has_updates([event])
            with pytest.raises(CommandError):
                wanted(event)
            continue
        assert wanted(event) == scanned
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
    want = wanted(event)
    assert want is not None
    assert want.key == DocumentKey.of(document_key)
    assert want.key.raw == document_key
