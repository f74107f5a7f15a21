from contextlib import suppress

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.commands.reply_bodies import build_cursor_reply
from router.stream.readers.log_reader import Batch
from shard_client.errors import CommandError, ProtocolError
from shard_client.remote_cursor import cursor_reply
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_key
from tests.recordings import recorded
from tests.unit.shard_client.bson_values import documents, encoded

tokens = st.text("0123456789ABCDEF", min_size=1, max_size=150)
token_documents = st.builds(
    lambda data, bits: {"_data": data, **({"_typeBits": bits} if bits else {})},
    tokens,
    st.binary(max_size=3),
)
events_in_front = st.builds(
    lambda token, rest: {"_id": token} | rest | {"_id": token}, token_documents, documents
)


def _reply(events, batch="nextBatch", **cursor):
    return {"cursor": {batch: events, "id": 5, "ns": "d.c", **cursor}, "ok": 1.0}


def sliced(body: bytes) -> CursorBatch:
    batch = CursorBatch.of(body)
    batch.split()
    return batch


def _slice(reply) -> CursorBatch:
    return sliced(bson.encode(reply))


def recorded_replies():
    """Yield each recorded reply, raw and decoded, one at a time because all are large."""
    for reply in recorded.replies():
        yield reply, bson.decode(reply.raw)


def test_every_recorded_event_is_parsed_with_its_token():
    count = 0
    for reply, document in recorded_replies():
        if not document["ok"]:
            continue
        batch = sliced(reply.raw)
        keys = [bson.decode(event)["_id"]["_data"].encode() for event in reply.events]
        assert batch.events == list(zip(keys, reply.events, strict=True))
        assert batch.size == sum(map(len, reply.events))
        assert batch.cursor_id == reply.cursor_id
        assert (b"" if batch.watermark is None else batch.watermark.token) == (reply.pbrt or b"")
        assert batch.invalidated == reply.invalidated
        assert batch.operation_time == document["operationTime"]
        assert bson.decode(batch.cluster_time) == document["$clusterTime"]
        count += len(keys)
    assert count > 5000


def test_every_recorded_reply_of_mongos_is_rebuilt_byte_for_byte():
    rebuilt = [
        reply for reply, document in recorded_replies() if reply.via == "mongos" and document["ok"]
    ]
    for reply in rebuilt:
        batch = sliced(reply.raw)
        name = "firstBatch" if "aggregate" in reply.command else "nextBatch"
        pbrt = b"" if batch.watermark is None else batch.watermark.token
        whole = Batch([event for _, event in batch.events], batch.size, pbrt, closed=False)
        times = batch.cluster_time, batch.operation_time
        parts = build_cursor_reply(name, whole, batch.cursor_id, batch.namespace, times)
        assert b"".join(parts) == reply.raw
    assert len(rebuilt) > 40


@given(st.lists(st.tuples(events_in_front, st.booleans()), min_size=1, max_size=12))
def test_events_of_transactions_are_found_without_scanning(chosen):
    front = {"txnNumber": bson.Int64(7), "lsid": {"id": b"x" * 16, "uid": b"y" * 32}}
    events = [
        {**front, **event, **front} if in_transaction else event for event, in_transaction in chosen
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_reply, "_split_by_scanning", None)
        patch.setattr(cursor_reply, "find", None)
        batch = _slice(_reply(events))
    assert [event for _, event in batch.events] == [encoded(event) for event in events]
    assert [key.decode() for key, _ in batch.events] == [e["_id"]["_data"] for e in events]
    assert batch.size == sum(len(event) for _, event in batch.events)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 1001, 10_001])
def test_array_indexes_of_all_widths_are_built(count):
    events = [bson.encode({"_id": {"_data": f"82{n:08X}"}, "n": n}) for n in range(count)]
    whole = Batch(events, sum(map(len, events)), b"", closed=False)
    parts = build_cursor_reply("nextBatch", whole, 1, "d.c")
    body = b"".join(parts)
    assert len(body) == int.from_bytes(parts[0][:4], "little")
    assert bson.decode(body)["cursor"]["nextBatch"] == [bson.decode(event) for event in events]
    batch = sliced(body)
    assert [event for _, event in batch.events] == events
    assert batch.size == sum(map(len, events))


@pytest.mark.parametrize(
    ("count", "requested", "complete"),
    [(20, 20, False), (19, 20, True), (60, 80, True), (49, 0, True), (50, 0, False)],
)
def test_a_full_batch_may_have_been_cut_short(count, requested, complete):
    batch = _slice(_reply([{"_id": {"_data": "82AB"}}] * count))
    batch.requested = requested
    assert batch.complete is complete


def test_an_array_with_unusual_indexes_is_parsed():
    event = bson.encode({"_id": {"_data": "82AB"}})
    array = b"\x03first\0" + event + b"\x03\0" + event
    array = (len(array) + 5).to_bytes(4, "little") + array + b"\0"
    cursor = b"\x04nextBatch\0" + array + b"\x12id\0" + bytes(8)
    cursor = (len(cursor) + 5).to_bytes(4, "little") + cursor + b"\0"
    body = b"\x03cursor\0" + cursor + b"\x10ok\0\x01\0\0\0"
    batch = sliced((len(body) + 5).to_bytes(4, "little") + body + b"\0")
    assert batch.events == [(b"82AB", event)] * 2
    assert batch.size == 2 * len(event)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({}, "whether it is ok"),
        ({"ok": 1.0}, "no cursor"),
        ({"ok": 0.0, "code": "a"}, "error reply is malformed"),
        ({"ok": 0.0, "code": 1, "errmsg": 1}, "error reply is malformed"),
        ({"ok": 0.0, "code": 1, "errorLabels": [1]}, "error reply is malformed"),
        ({"ok": 1.0, "cursor": 1}, "no cursor"),
        ({"ok": 1.0, "cursor": {"nextBatch": []}}, "no id"),
        ({"ok": 1.0, "cursor": {"id": 0}}, "no batch"),
        (_reply([1]), "else than documents"),
        (_reply([{}]), "no resume token"),
        (_reply([{"_id": 1}]), "no resume token"),
        (_reply([{"_id": {}}]), "no _data"),
        (_reply([{"_id": {"_data": 1}}]), "no _data"),
        (_reply([{"_id": {"_data": ""}}]), "no _data"),
    ],
)
def test_malformed_replies_are_refused(reply, why):
    with pytest.raises(ProtocolError, match=why):
        _slice(reply)


def test_a_token_longer_than_its_event_is_refused():
    body = bytearray(
        bson.encode(_reply([{"_id": {"_data": "82ABCDEF"}}, {"_id": {"_data": "83"}}]))
    )
    at = body.index(b"_data\0") + 6
    body[at] += 50
    body[body.index(b"_id\0") + 4] += 50
    with pytest.raises(ProtocolError):
        sliced(bytes(body))


@given(token_documents, documents)
def test_token_data_is_found_among_other_fields(token, more):
    assert token_key(bson.encode({**more, **token})) == token["_data"].encode()


@given(st.lists(events_in_front, min_size=1, max_size=5), st.data())
def test_damaged_replies_raise_only_protocol_or_command_errors(events, data):
    body = bytearray(bson.encode(_reply(events)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError, CommandError):
        sliced(bytes(body))
