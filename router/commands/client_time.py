"""Check a client's ``$clusterTime`` as servers do, with mongos's error messages.

Clients' times never advance the cluster clock, which takes time from servers alone: without
authentication nothing proves a client's time (docs/clients.md). A message relayed
to the upstream keeps its ``$clusterTime``; the upstream checks it by its own rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp

from router.bson_text import type_name
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

MOST_DRIFT = 365 * 24 * 60 * 60
"""Most seconds that a time can be ahead: the default of maxAcceptableLogicalClockDriftSecs."""

_HASH_SIZE = 20


@dataclass(frozen=True, slots=True)
class ClientTime:
    """A well-formed ``$clusterTime``: the time and its signature.

    ``digest`` is the signature's 20 bytes; ``key_id`` is the id of the signing key. The signature
    is not verified here, since that requires the keys.
    """

    time: Timestamp
    digest: bytes
    key_id: int


def check_client_time(value: object, now: float) -> ClientTime:
    """Return the parsed ``$clusterTime`` of a client's command.

    Args:
        value: the decoded field; unknown subfields are ignored, as servers do.
        now: the wall clock, in seconds since 1970.

    Raises:
        CommandError: mongos's error for a malformed time (10065, 2, 4, 12, 14), or for one more
            than a year ahead (205).
    """
    if not isinstance(value, Mapping | list):
        raise CommandError(10065, "invalid parameter: expected an object ($clusterTime)")
    document = value if isinstance(value, Mapping) else {}
    time = _field(document, "clusterTime", Timestamp, "timestamp")
    signature = _field(document, "signature", Mapping, "object")
    digest = _field(signature, "hash", bytes, "binData")
    if isinstance(digest, Binary) and digest.subtype != 0:
        raise CommandError(
            ErrorCode.UnsupportedFormat, "SHA1Block only accepts BinDataGeneral type"
        )
    if len(digest) != _HASH_SIZE:
        raise CommandError(
            ErrorCode.UnsupportedFormat, f"Unsupported SHA1Block hash length: {len(digest)}"
        )
    key_id = _key_id(_present(signature, "keyId"))
    if time.time > now + MOST_DRIFT:
        raise CommandError(
            ErrorCode.ClusterTimeFailsRateLimiter,
            f"New $clusterTime, {time.time}, is too far from this node's wall clock time, "
            f"{int(now)}.",
        )
    return ClientTime(time, bytes(digest), key_id)


def _field(document: Mapping[str, Any], name: str, kind: type, expected: str) -> Any:
    value = _present(document, name)
    if not isinstance(value, kind):
        message = f'"{name}" had the wrong type. Expected {expected}, found {type_name(value)}'
        raise CommandError(ErrorCode.TypeMismatch, message)
    return value


def _key_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'Expected field "keyId" to have numeric type, but found {type_name(value)}',
        )
    number: Any = value.to_decimal() if isinstance(value, Decimal128) else value
    if number != number or abs(number) >= 2**63 or int(number) != number:
        shown = f"{value}.0" if isinstance(value, float) and "." not in str(value) else value
        raise CommandError(
            ErrorCode.BadValue,
            'Expected field "keyId" to have a value exactly representable as a 64-bit integer, '
            f"but found keyId: {shown}",
        )
    return int(number)


def _present(document: Mapping[str, Any], name: str) -> Any:
    try:
        return document[name]
    except KeyError:
        raise CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name}"') from None
