"""Signatures of cluster times: those given to clients, and those that clients send.

Servers sign a time with HMAC-SHA-1 and a key from ``admin.system.keys``, which are renewed every
three months. To a connection that may advance the clock, as a member's may, they give times with a
dummy signature, which must not reach a client: its next mongos would refuse it
(docs/protocol.md#authentication).
"""

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import structlog
from bson.int64 import Int64
from bson.timestamp import Timestamp

from router.catalog.cluster import PAUSE_AFTER_REFUSAL, Cluster
from shard_client.cluster_clock import MOST_DRIFT
from shard_client.errors import CommandError, ErrorCode, NetworkError
from shard_client.wire.documents import encode

log = structlog.get_logger(component="ACCESS")


def check_drift(time: Timestamp, now: float) -> None:
    """Check that the cluster time of a client's command is not too far ahead.

    Clients' times never advance the cluster clock, which takes time from servers alone: without
    authentication nothing proves a client's time (docs/clients.md). A message relayed to the
    upstream keeps its ``$clusterTime``; the upstream checks it by its own rules.

    Raises CommandError: 205, as mongos, for a time more than a year ahead of ``now``, the seconds
    since 1970.
    """
    if time.time > now + MOST_DRIFT:
        raise CommandError(
            ErrorCode.ClusterTimeFailsRateLimiter,
            f"New $clusterTime, {time.time}, is too far from this node's wall clock time, "
            f"{int(now)}.",
        )


_RANGE: Final = 0xFFFF
_ordinal = Struct("<Q")
_READ_SECONDS = 300.0
_RETRY_SECONDS = 1.0
_ANSWER_TIMEOUT = 10.0
_LEAST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key of the cluster; it signs times before ``expires``, as seconds << 32 | increment."""

    key_id: int
    key: bytes
    expires: int

    def sign(self, ordinal: int) -> bytes:
        """Return the 20 bytes of the signature of a time, given as seconds << 32 | increment."""
        return hmac.digest(self.key, _ordinal.pack(ordinal | _RANGE), "sha1")


SignedTime = tuple[bytes, Timestamp] | tuple[None, None]
"""A signed ``$clusterTime`` as raw BSON, and its time; None for both where there is none."""


class SignedTimes:
    """The cluster times that may be given to clients.

    With the cluster's keys, every time of the clock is signed here. Without them, the newest time
    that a server has signed is given. ``keep_reading`` reads the keys.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._keys: tuple[SigningKey, ...] = ()
        self._refused = False
        """Whether the config server has last refused to show the keys."""
        self._last: SignedTime = None, None
        self._last_ordinal = 0
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    @property
    def newest(self) -> SignedTime:
        """The newest signed ``$clusterTime`` as raw BSON, and its time.

        mongos, too, sends no times to clients before it has keys.
        """
        clock = self._cluster.clock
        if not self._keys:
            return clock.newest_signed
        ordinal = clock.ordinal
        if ordinal != self._last_ordinal or self._last[0] is None:
            key = self._key(ordinal)
            if key is None:
                return clock.newest_signed
            time = Timestamp(ordinal >> 32, ordinal & 0xFFFFFFFF)
            signature = {"hash": key.sign(ordinal), "keyId": Int64(key.key_id)}
            self._last = encode({"clusterTime": time, "signature": signature}), time
            self._last_ordinal = ordinal
        return self._last

    async def check(self, cluster_time: Mapping[str, Any]) -> None:
        """Check the signature of a client's ``$clusterTime``, as mongos checks it.

        ``is_cluster_time`` has accepted its form. A time that the clock has reached needs no proof.
        Without the cluster's keys nothing can be checked; the router uses no client's time in any
        case. Raises CommandError: 211, no such key; 204, the signature is not that of the time.
        """
        time, signature = cluster_time["clusterTime"], cluster_time["signature"]
        key_id = int(signature["keyId"])
        ordinal = time.time << 32 | time.inc
        if ordinal <= self._cluster.clock.ordinal or self._refused:
            return
        key = self._key(ordinal, key_id)
        if key is None:
            await self._read_soon()
            key = self._key(ordinal, key_id)
        if key is None:
            raise CommandError(
                ErrorCode.KeyNotFound,
                "No keys found for HMAC that is valid for time: "
                f"{{ ts: Timestamp({time.time}, {time.inc}) }} with id: {key_id}",
            )
        if not hmac.compare_digest(key.sign(ordinal), signature["hash"]):
            raise CommandError(ErrorCode.TimeProofMismatch, "Proof does not match the cluster time")

    def _key(self, ordinal: int, key_id: int | None = None) -> SigningKey | None:
        """Return the first key, or that of ``key_id``, that may sign the time; None without one."""
        valid = (key for key in self._keys if key.expires > ordinal)
        return next((key for key in valid if key_id is None or key.key_id == key_id), None)

    async def keep_reading(self) -> None:
        """Read the keys now and again, until cancelled."""
        while True:
            try:
                has_read = await self._try_to_read()
            except Exception:  # the reading of keys must continue
                log.exception("Unexpected error")
                has_read = False
            if self._refused:
                pause = PAUSE_AFTER_REFUSAL
            else:
                pause = _READ_SECONDS if has_read and self._keys else _RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _try_to_read(self) -> bool:
        """Read the keys; return whether that has succeeded. A failure is logged."""
        try:
            await self._read()
        except (CommandError, NetworkError) as error:
            if isinstance(error, CommandError) and error.code == ErrorCode.Unauthorized:
                if not self._refused:
                    log.info(
                        "The router's user may not read the keys of cluster times; clients get "
                        "times that servers have signed"
                    )
                self._refused = True
            else:
                log.warning("cannot read the signing keys", error=str(error))
            return False
        self._refused = False
        return True

    async def _read_soon(self) -> None:
        """Read the keys again, at most once a second however many clients make it necessary."""
        async with self._reading:
            if asyncio.get_running_loop().time() - self._read_at >= _LEAST_PAUSE:
                await self._try_to_read()
                # Clients that wait for a server that does not answer wait for one read together.
                self._read_at = asyncio.get_running_loop().time()

    async def _read(self) -> None:
        self._read_at = asyncio.get_running_loop().time()
        command = {"find": "system.keys", "filter": {"purpose": "HMAC"}, "singleBatch": True}
        reply = await self._cluster.command(
            self._cluster.catalog, "admin", command, _ANSWER_TIMEOUT
        )
        try:
            keys = [_signing_key(key) for key in reply["cursor"]["firstBatch"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CommandError(
                ErrorCode.FailedToParse, "admin.system.keys cannot be read"
            ) from None
        self._keys = tuple(sorted(keys, key=lambda key: key.expires))
        self._last = None, None


def _signing_key(document: Any) -> SigningKey:
    expires = document["expiresAt"]
    return SigningKey(
        int(document["_id"]), bytes(document["key"]), expires.time << 32 | expires.inc
    )
