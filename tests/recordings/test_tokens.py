"""Resume tokens of many types of ``_id``, which a real server has made, in each codec."""

import json
from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import UUID

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.decimal128 import Decimal128
from bson.json_util import JSONOptions, loads
from bson.timestamp import Timestamp

from embedded.change_streams.tokens import event_token
from shard_client.bson import resume_token as tokens_of
from shard_client.bson.values import MalformedValueError
from spark_sink.events import positions as spark_tokens
from tests.recordings.recorded import tokens

_FRONT = "2B022C0100296E5A1004"
_UUID = slice(len("82") + 16 + len(_FRONT), len("82") + 16 + len(_FRONT) + 32)
_KEY = slice(_UUID.stop, -len("04"))
_OPTIONS = JSONOptions(
    json_mode=2, datetime_conversion=DatetimeConversion.DATETIME_MS, tz_aware=False
)


def value_of(recorded: dict[str, Any]) -> Any:
    """The ``_id`` as the embedded cluster decodes it from BSON."""
    value = loads(json.dumps({"_id": recorded["_id"]}), json_options=_OPTIONS)
    codec = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
    return bson.decode(bson.encode(value), codec)["_id"]


def raw(recorded: dict[str, Any]) -> bytes:
    """The token's document as the server sends it."""
    bits = bytes.fromhex(recorded["typeBits"])
    return bson.encode({"_data": recorded["token"], **({"_typeBits": bits} if bits else {})})


def test_recorded_tokens_are_decoded():
    for recorded in tokens():
        check_decoded(recorded)


def check_decoded(recorded: dict[str, Any]) -> None:
    time, data, document = Timestamp(*recorded["clusterTime"]), recorded["token"], raw(recorded)

    token = tokens_of.ResumeToken.parse(bson.decode(document))
    assert (token.cluster_time, token.version, token.token_type) == (time, 1, 128)
    assert (token.txn_op_index, token.from_invalidate) == (0, False)
    assert token.uuid == UUID(data[_UUID])
    assert token.event_identifier.hex().upper() == data[_KEY]
    assert (token.fragment_num, token.is_high_water_mark) == (None, False)
    assert (token.data.decode(), token.raw) == (data, document)

    position = spark_tokens.Token(bson.decode(document))
    assert (position.cluster_time, position.data, position.is_of_version_1) == (time, data, True)
    assert tokens_of.is_of_document(data)
    assert (position.is_high_water_mark, tokens_of.is_invalidate(data)) == (False, False)


def test_recorded_tokens_are_decoded_in_their_newer_form():
    """Version 2 has the document key inside of an identifier, and may have a fragment's number."""
    operation = "463C6F7065726174696F6E54797065003C696E7365727400"
    for recorded in tokens():
        data = recorded["token"]
        front = data[:18] + _FRONT.replace("2B02", "2B04", 1) + data[_UUID]
        newer = f"{front}{operation}46646F63756D656E744B657900{data[_KEY]}00"
        assert tokens_of.as_version(f"{newer}04".encode(), 1).decode() == data
        for number, text in ((None, ""), (0, "29"), (3, "2B06")):
            token = tokens_of.ResumeToken.decode(f"{newer}{text}04")
            assert (token.fragment_num, token.whole_key.decode()) == (number, f"{newer}04")


def test_the_invalidate_after_a_recorded_token_is_decoded():
    for recorded in tokens():
        invalidate = tokens_of.key_of_invalidate(recorded["token"].encode()).decode()
        assert tokens_of.ResumeToken.decode(invalidate).from_invalidate
        assert tokens_of.is_invalidate(invalidate)


def test_recorded_tokens_are_encoded():
    outcomes: Counter[str] = Counter()
    for recorded in tokens():
        value, data = value_of(recorded), recorded["token"]
        time, uuid = Timestamp(*recorded["clusterTime"]), UUID(data[_UUID])
        try:
            made = event_token(time, 1, {"_id": value}, uuid=uuid)
        except MalformedValueError:
            assert isinstance(value, Decimal128), value
            assert Decimal(float(value.to_decimal())) != value.to_decimal()
            outcomes["refused"] += 1
            continue
        assert made.raw == raw(recorded), value
        outcomes["equal"] += 1
    assert outcomes == {"equal": 118, "refused": 45}
