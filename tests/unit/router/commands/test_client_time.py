"""Invalid ``$clusterTime`` values are refused with a real mongos's messages."""

from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp

from router.access.signing import MOST_DRIFT, check_client_time
from shard_client.errors import CommandError
from tests.harness.facade import facade

NOW = 1_795_300_317
TIME = Timestamp(NOW - 10, 1)
HASH = Binary(b"\0" * 20, 0)
SIGNATURE: dict[str, Any] = {"hash": HASH, "keyId": Int64(0)}
TOO_FAR = NOW + MOST_DRIFT + 1

BAD: list[tuple[Any, int, str, str]] = [
    (5, 10065, "Location10065", "invalid parameter: expected an object ($clusterTime)"),
    (None, 10065, "Location10065", "invalid parameter: expected an object ($clusterTime)"),
    ({}, 4, "NoSuchKey", 'Missing expected field "clusterTime"'),
    ([], 4, "NoSuchKey", 'Missing expected field "clusterTime"'),
    (
        {"clusterTime": 5},
        14,
        "TypeMismatch",
        '"clusterTime" had the wrong type. Expected timestamp, found int',
    ),
    ({"clusterTime": TIME}, 4, "NoSuchKey", 'Missing expected field "signature"'),
    (
        {"clusterTime": Timestamp(TOO_FAR, 1), "signature": "junk"},
        14,
        "TypeMismatch",
        '"signature" had the wrong type. Expected object, found string',
    ),
    ({"clusterTime": TIME, "signature": {}}, 4, "NoSuchKey", 'Missing expected field "hash"'),
    (
        {"clusterTime": TIME, "signature": {"hash": "x", "keyId": 0}},
        14,
        "TypeMismatch",
        '"hash" had the wrong type. Expected binData, found string',
    ),
    (
        {"clusterTime": TIME, "signature": {"hash": Binary(b"\0" * 20, 5), "keyId": 0}},
        12,
        "UnsupportedFormat",
        "SHA1Block only accepts BinDataGeneral type",
    ),
    (
        {"clusterTime": TIME, "signature": {"hash": b"1", "keyId": 0}},
        12,
        "UnsupportedFormat",
        "Unsupported SHA1Block hash length: 1",
    ),
    (
        {"clusterTime": TIME, "signature": {"hash": HASH}},
        4,
        "NoSuchKey",
        'Missing expected field "keyId"',
    ),
    (
        {"clusterTime": TIME, "signature": {"hash": HASH, "keyId": "x"}},
        14,
        "TypeMismatch",
        'Expected field "keyId" to have numeric type, but found string',
    ),
    *(
        (
            {"clusterTime": TIME, "signature": {"hash": HASH, "keyId": key_id}},
            2,
            "BadValue",
            'Expected field "keyId" to have a value exactly representable as a 64-bit integer, but '
            f"found keyId: {shown}",
        )
        for key_id, shown in (
            (1.5, "1.5"),
            (float("nan"), "nan.0"),
            (1e300, "1e+300.0"),
            (Decimal128("1.5"), "1.5"),
        )
    ),
    (
        {"clusterTime": Timestamp(TOO_FAR, 1), "signature": SIGNATURE},
        205,
        "ClusterTimeFailsRateLimiter",
        f"New $clusterTime, {TOO_FAR}, is too far from this node's wall clock time, {NOW}.",
    ),
]


@pytest.mark.parametrize(("value", "code", "name", "message"), BAD)
def test_a_bad_time_is_refused(value: Any, code: int, name: str, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        check_client_time(value, NOW)
    error = refused.value
    assert (error.code, error.code_name, error.message) == (code, name, message)


@pytest.mark.parametrize("key_id", [0, Int64(0), 0.0, Decimal128("0")])
def test_a_valid_time_is_parsed(key_id: Any) -> None:
    signature = {"keyId": key_id, "hash": HASH, "pad": 1}
    found = check_client_time({"signature": signature, "pad": 1, "clusterTime": TIME}, NOW)
    assert (found.time, found.digest, found.key_id) == (TIME, b"\0" * 20, 0)


def test_a_time_up_to_a_year_ahead_is_accepted() -> None:
    time = Timestamp(NOW + MOST_DRIFT, 1)
    assert check_client_time({"clusterTime": time, "signature": SIGNATURE}, NOW).time == time


async def test_replies_have_no_cluster_time_before_one_is_known() -> None:
    async with facade() as router, await router.client() as client:
        router.node.clock = type(router.node.clock)()
        reply = await client.command("admin", {"hello": 1})
        assert "$clusterTime" not in reply
        assert isinstance(reply["topologyVersion"]["processId"], ObjectId)
