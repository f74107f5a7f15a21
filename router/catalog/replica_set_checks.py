"""Checks of the cluster's replica sets: whether each answers, and how far back its oplog goes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson.timestamp import Timestamp

from router.catalog.cluster import CONFIG, Cluster
from shard_client.errors import CommandError, NetworkError

_OLDEST_ENTRY: Mapping[str, Any] = {
    "find": "oplog.rs",
    "sort": {"$natural": 1},
    "projection": {"ts": 1, "o.msg": 1},
    "limit": 1,
    "singleBatch": True,
}
_FIRST_ENTRY = "initiating set"
"""Message of the first entry that a replica set writes: while it is there, nothing is dropped."""

_TIMEOUT = 3.0
_MOST_AT_ONCE = 16
_PATIENCE = 1.0
"""Less than the time that the parent of several workers waits for their statuses."""


@dataclass(frozen=True, slots=True)
class ReplicaSetCheck:
    """The result of one check.

    ``answers`` is whether the primary answered. ``oldest`` is the time of its oldest oplog entry,
    None if it is unknown; ``complete`` is whether no entry has been dropped since the replica set
    was initiated. ``error`` says what failed, None if nothing did.
    """

    answers: bool
    oldest: Timestamp | None = None
    complete: bool = False
    error: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the check as a document."""
        return {
            "answers": self.answers,
            "oldest": self.oldest,
            "complete": self.complete,
            "error": self.error,
        }


class ReplicaSetChecks:
    """Checks the config server and all shards on request, and keeps the results for a while.

    A check takes one hello and one read of one oplog entry on each primary. Must be created in a
    running loop; ``await close()`` ends a check in flight.

    Args:
        cluster: the cluster whose replica sets are checked.
        keep: seconds for which results are returned again without another check.
    """

    def __init__(self, cluster: Cluster, *, keep: float = 5.0) -> None:
        self._cluster = cluster
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._results: Mapping[str, ReplicaSetCheck] = {}
        self._at = float("-inf")

    async def results(self, *, patience: float | None = _PATIENCE) -> Mapping[str, ReplicaSetCheck]:
        """Return the results by target: the shards' ids, and ``config``.

        If they are more than ``keep`` seconds old, a new check is started. A check that takes
        longer than ``patience`` seconds goes on in the background; the call then returns the
        results before it, which are empty at first. If the config server does not answer, the
        shards of the last shard list that was read are checked.

        Args:
            patience: seconds; None waits for the end of the check.
        """
        if self._running is None and self._loop.time() - self._at >= self._keep:
            self._running = self._loop.create_task(self._refresh(), name="check the replica sets")
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=patience)
        return self._results

    async def close(self) -> None:
        """End the check in flight."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def _refresh(self) -> None:
        try:
            self._results = await self._check_all()
            self._at = self._loop.time()
        finally:
            self._running = None

    async def _check_all(self) -> Mapping[str, ReplicaSetCheck]:
        try:
            await self._cluster.shards(_TIMEOUT)
        except CommandError as error:
            config = ReplicaSetCheck(answers=False, error=str(error))
        else:
            config = await self._check(CONFIG)
        targets = sorted(self._cluster.known_shards)
        at_once = asyncio.Semaphore(_MOST_AT_ONCE)

        async def check(target: str) -> ReplicaSetCheck:
            async with at_once:
                return await self._check(target)

        checks = await asyncio.gather(*map(check, targets))
        return {CONFIG: config, **dict(zip(targets, checks, strict=True))}

    async def _check(self, target: str) -> ReplicaSetCheck:
        dialer = self._cluster.dialer(target)
        answers = False
        try:
            async with asyncio.timeout(_TIMEOUT):
                connection = await dialer.connect(_TIMEOUT)
                answers = True
                try:
                    reply = await connection.command("local", _OLDEST_ENTRY, timeout=_TIMEOUT)
                finally:
                    dialer.release(connection)
                (entry,) = reply["cursor"]["firstBatch"]
                complete = entry.get("o", {}).get("msg") == _FIRST_ENTRY
                return ReplicaSetCheck(answers, oldest=entry["ts"], complete=complete)
        except TimeoutError:
            return ReplicaSetCheck(answers, error=f"no answer within {_TIMEOUT:g} s")
        except (CommandError, NetworkError) as error:
            return ReplicaSetCheck(answers, error=str(error))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return ReplicaSetCheck(answers, error=f"its oplog cannot be read: {error!r}")
