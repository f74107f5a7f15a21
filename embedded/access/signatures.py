"""Signatures of cluster times, with the keys of admin.system.keys on the config server.

Source: docs/protocol.md#authentication.
"""

import hmac
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError

_RANGE = 0xFFFF
"""All times that differ in these bits have one signature."""

_VALID_SECONDS = 90 * 86_400
_DUMMY = {"hash": b"\x00" * 20, "keyId": 0}


class _Key(NamedTuple):
    id: int
    secret: bytes
    expires: Timestamp

    def sign(self, time: Timestamp) -> bytes:
        message = (as_ordinal(time) | _RANGE).to_bytes(8, "little")
        return hmac.digest(self.secret, message, "sha1")


class TimeKeys:
    """The two keys of a cluster: one signs until it expires, then the other.

    Args:
        now: the wall clock, in seconds since 1970.
    """

    def __init__(self, now: float) -> None:
        # The increment tells clusters apart that start in the same second.
        first = (int(now) << 32) | (2 * secrets.randbelow(2**20) + 1)
        self._keys = [
            _Key(
                first + number,
                secrets.token_bytes(20),
                Timestamp(int(now) + (number + 1) * _VALID_SECONDS, 0),
            )
            for number in range(2)
        ]

    def documents(self) -> list[Document]:
        """Return the keys as documents of admin.system.keys."""
        return [
            {
                "_id": Int64(key.id),
                "purpose": "HMAC",
                "key": Binary(key.secret),
                "expiresAt": key.expires,
            }
            for key in self._keys
        ]

    def sign(self, time: Timestamp) -> Document:
        """Return a ``$clusterTime`` with its signature."""
        key = next((key for key in self._keys if key.expires > time), self._keys[-1])
        signature = {"hash": Binary(key.sign(time)), "keyId": Int64(key.id)}
        return {"clusterTime": time, "signature": signature}

    def check(self, given: Mapping[str, Any]) -> None:
        """Check the signature of a client's ``$clusterTime``.

        Raises:
            CommandError: 211 KeyNotFound; 204 if it is not the signature of this time; 4 if it has
                none.
        """
        time, signature = given["clusterTime"], given.get("signature")
        if not isinstance(signature, Mapping) or not {"hash", "keyId"} <= signature.keys():
            raise CommandError(4, 'Missing expected field "signature"', code_name="NoSuchKey")
        for key in self._keys:
            if key.id == signature["keyId"] and key.expires > time:
                break
        else:
            raise CommandError(
                211,
                "No keys found for HMAC that is valid for time: "
                f"{{ ts: Timestamp({time.time}, {time.inc}) }} with id: {signature['keyId']}",
                code_name="KeyNotFound",
            )
        digest = signature["hash"]
        if not isinstance(digest, bytes) or not hmac.compare_digest(key.sign(time), digest):
            raise CommandError(
                204, "Proof does not match the cluster time", code_name="TimeProofMismatch"
            )


def unsigned(time: Timestamp) -> Document:
    """Return a ``$clusterTime`` with the dummy signature of servers without keys."""
    return {"clusterTime": time, "signature": _DUMMY}
