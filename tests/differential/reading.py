"""Reading one change stream from one server to its end, as raw bytes."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import Int64, Timestamp
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from tests.differential.plans import Plan, Token, token_time
from tests.differential.raw_values import LENIENT
from tests.harness.raw_client import RawClient

_RAW = CodecOptions(
    document_class=RawBSONDocument,
    unicode_decode_error_handler="replace",
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
_TIME = 18
_VERSION = slice(_TIME, _TIME + 4)
"""Where a token has its version; its cluster time comes first."""
_LARGEST_REPLY = (16 << 20) + (16 << 10)
_VARIES = re.compile(
    r"\b\d{15,20}\b|127\.0\.0\.1:\d+|shard\d\b|(?<=BSONObj size: )\d+ .0x\w+."
    r"|((?<=for event: )|(?<=Expected: )|(?<=token was not found. )).*"
)
"""Parts of messages that may differ: cursor ids, addresses, and details of the shard whose event
came first. Shards add a sort key to events for mongos, which changes the size in messages.
"""
TOKEN_NOT_FOUND = "cannot resume stream; the resume token was not found."
OF_SHARD = "Error on remote shard"
"""The beginning of the message of a merge that does not find its resume token."""


class DeadlineError(Exception):
    """A stream stood still for too long before its end."""


@dataclass(frozen=True)
class Failure:
    """An error reply, with the fields that drivers use."""

    code: int
    name: str | None
    message: str
    labels: tuple[str, ...]
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.code} {self.name} {list(self.labels)} {self.message[:400]}"


@dataclass
class Reading:
    """The events and other results of one stream on one server."""

    opening: dict[str, Any] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """The sort key of each event: its token's ``_data``."""
    promises: list[tuple[int, Token]] = field(default_factory=list)
    """Each reply's postBatchResumeToken, with the number of events up to that reply."""
    failures: list[Failure] = field(default_factory=list)
    invalidated: bool = False
    """Whether the stream closed by itself, without an error."""
    killed: bool | None = None
    """Whether the cursor was still open when it was killed at the end."""
    wrong: list[str] = field(default_factory=list)
    """Violations of the rules that hold for every change stream."""

    @property
    def pairs(self) -> list[tuple[str, bytes]]:
        """The events with their tokens."""
        return list(zip(self.tokens, self.events, strict=True))

    @property
    def promised(self) -> str:
        """The sort key of the last postBatchResumeToken."""
        return self.promises[-1][1]["_data"] if self.promises else ""

    @property
    def all_tokens(self) -> list[Token]:
        """All tokens that a client could resume after."""
        events = [bson.decode(bson.decode(event, _RAW)["_id"].raw) for event in self.events]
        return events + [token for _, token in self.promises]


def _is_after(token: str, other: str) -> bool:
    """Return whether a token may follow another one.

    A stream without fragments that starts after an event of a stream with fragments goes on with
    tokens of version 1. Within one cluster time, these sort before all of version 2.
    """
    versions = token[_VERSION], other[_VERSION]
    return token > other or (token[:_TIME] == other[:_TIME] and versions == ("2B02", "2B04"))


class Reader:
    """Reads ``plan`` from the server at ``port``.

    Args:
        port: the port of a mongos or a router.
        plan: the stream to read.
        seconds: the longest time without an event or a later token.
    """

    def __init__(self, port: int, plan: Plan, seconds: float) -> None:
        self.reading = Reading()
        self.opened = asyncio.Event()
        self._port = port
        self._plan = plan
        self._seconds = seconds
        self._cursor = 0
        self._batches = 0

    async def read(self, end: "asyncio.Future[Timestamp]", most: int = 1 << 30) -> Reading:
        """Read until the stream's promise has passed ``end``, it closes, or it fails.

        Args:
            end: the cluster time to read to; the future may be resolved during reading.
            most: the largest number of replies to read.

        Raises:
            DeadlineError: the stream stood still for too long before its end.
        """
        try:
            async with asyncio.timeout(self._seconds) as limit:
                async with await RawClient.connect(self._port) as client:
                    await self._open(client)
                    if self._plan.bad is not None and self._cursor:
                        await self._more(client, self._plan.bad)
                    while self._cursor and self._batches < most and not self._is_past(end):
                        more = self._plan.more[self._batches % len(self._plan.more)]
                        before = self.reading.promises[-1:]
                        self._batches += 1
                        if not await self._more(client, more):
                            break
                        if self._batches == 1:
                            await asyncio.sleep(self._plan.pause)
                        if self.reading.promises[-1:] != before:
                            limit.reschedule(asyncio.get_running_loop().time() + self._seconds)
                    await self._close(client)
        except TimeoutError:
            at = self.reading.promises[-1:]
            raise DeadlineError(f"read {len(self.reading.events)} events, up to {at}") from None
        finally:
            self.opened.set()
        return self.reading

    def _is_past(self, end: "asyncio.Future[Timestamp]") -> bool:
        if not end.done() or not self.reading.promises:
            return False
        return token_time(self.reading.promised) > end.result()

    async def _command(self, client: RawClient, command: dict[str, Any]) -> RawBSONDocument:
        plan = self._plan
        client.send(plan.database, command)
        return await client.receive_raw(self._seconds, _RAW)

    async def _open(self, client: RawClient) -> None:
        reply = await self._command(client, self._plan.command)
        self.reading.opening = {"fields": tuple(reply)}
        if reply["ok"] == 1:
            self._take(reply, "firstBatch", self._plan.first_batch_size)
            cursor = reply["cursor"]
            self.reading.opening |= {"cursor": tuple(cursor), "ns": cursor["ns"]}
        else:
            self._fail(reply)
        self.opened.set()

    async def _more(self, client: RawClient, more: dict[str, Any]) -> bool:
        collection = self._plan.collection
        command = {"getMore": Int64(self._cursor), "collection": collection}
        command |= {**more, **self._plan.session}
        reply = await self._command(client, command)
        if reply["ok"] == 1:
            self._take(reply, "nextBatch", more.get("batchSize") or None)
            return True
        self._fail(reply)
        return False

    async def _close(self, client: RawClient) -> None:
        if not self._cursor:
            return
        command = {"killCursors": self._plan.collection, "cursors": [Int64(self._cursor)]}
        command |= self._plan.session
        reply = await self._command(client, command)
        if reply["ok"] != 1:
            self._fail(reply)
        self.reading.killed = bool(reply.get("cursorsKilled"))
        self._cursor = 0

    def _fail(self, reply: RawBSONDocument) -> None:
        failure = Failure(
            reply["code"],
            reply.get("codeName"),
            _VARIES.sub("…", reply["errmsg"]),
            tuple(reply.get("errorLabels", ())),
            tuple(reply),
        )
        self.reading.failures.append(failure)

    def _take(self, reply: RawBSONDocument, batch_name: str, batch_size: int | None) -> None:
        reading, cursor = self.reading, reply["cursor"]
        batch, closed = cursor[batch_name], cursor["id"] == 0
        if batch_size is not None and len(batch) > batch_size:
            reading.wrong.append(f"{len(batch)} events where {batch_size} were asked for")
        if len(reply.raw) > _LARGEST_REPLY:
            reading.wrong.append(f"a reply of {len(reply.raw)} bytes")
        if self._cursor not in (0, cursor["id"]) and not closed:
            reading.wrong.append("another cursor id")
        before = reading.promised
        for event in batch:
            token = event["_id"]["_data"]
            last = reading.tokens[-1] if reading.tokens else ""
            after_promise = _is_after(token, before)
            if not (token == last or (token > last and after_promise)):
                reading.wrong.append(f"{token} came after {last} and the promise {before}")
            reading.events.append(event.raw)
            reading.tokens.append(token)
        if "postBatchResumeToken" in cursor:
            token = bson.decode(cursor["postBatchResumeToken"].raw)
            reading.promises.append((len(reading.tokens), token))
            latest = max([before, *reading.tokens[-1:]])
            if before and latest != reading.promised and not _is_after(reading.promised, latest):
                reading.wrong.append(f"the promise {token} came after {before}")
        else:
            reading.wrong.append("no postBatchResumeToken")
        self._cursor = 0 if closed else cursor["id"]
        reading.invalidated = closed


def decoded(event: bytes) -> dict[str, Any]:
    """Return an event for a report, with long values shortened."""
    shown: dict[str, Any] = _short(bson.decode(event, LENIENT))
    return shown


def _short(value: Any) -> Any:
    if isinstance(value, str | bytes) and len(value) > 300:
        return f"{value[:60]!r}…({len(value)})"
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value[:30]]
    return value
