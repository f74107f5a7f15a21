"""The user's stages that follow the lookup; the upstream mongos runs them.

A server evaluates stages on whole events of any size in memory, but no command can carry an event
that is larger than a document. So each stage is evaluated on the fields that it uses. If those of a
condition are too large together, its operands are evaluated one by one. The router itself removes
fields.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bson.raw_bson import RawBSONDocument

from router.bson_text import render
from router.filters.field_walk import MOST_WORK, UNIT_BYTES, Allowance
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from router.limits.memory import Holding
from router.lookup.events import MAX_EVENT_BYTES, too_large
from router.lookup.pushdown import LookupPlan
from router.lookup.upstream_reads import UpstreamReads
from router.request.accepted import stage_name
from router.request.event_conditions import fields_used
from shard_client.bson.values import DOCUMENT
from shard_client.errors import RESUMABLE_CODES, CommandError, ErrorCode
from shard_client.remote_cursor.cursor_reply import token_of
from shard_client.wire.bson_slices import document_of, find, raw_fields
from shard_client.wire.documents import decode

Condition = Mapping[str, Any]

_MARK_NAME: Final = b"the fields left out"
_MARK: Final = b"\x0a" + _MARK_NAME + b"\0"
"""The field that stands for the fields left out of a part of an event."""

_LOGICAL: Final[Mapping[str, tuple[bool, bool]]] = {
    "$and": (False, False),
    "$or": (True, True),
    "$nor": (True, False),
}
"""The result of an operand that decides, and the condition's result then."""

_COPIES: Final = 4
"""How often a projection may copy an event: once for each level of nesting that it enters."""


def part_for(stage: Mapping[str, Any], event: bytes) -> bytes:
    """Return the event with its ``_id`` and the fields alone that a stage may read or write.

    It is the whole event if any field may be used.
    """
    used = fields_used(stage)
    if used is None:
        return event
    wanted = {b"_id", *(name.encode() for name in used)}
    return document_of(b"".join(field for name, field in raw_fields(event) if name in wanted))


def rejoined(event: bytes, part: bytes, result: bytes) -> bytes:
    """Return the event after a stage: ``result`` is the stage's result for ``part``, marked.

    If the mark is still there, the stage keeps the fields that it does not name. New fields come
    last, as on servers.
    """
    changed = dict(raw_fields(result))
    if changed.pop(_MARK_NAME, None) is None:
        return result
    used = {name for name, _ in raw_fields(part)}
    fields = [
        changed.pop(name, b"") if name in used else field for name, field in raw_fields(event)
    ]
    return document_of(b"".join((*fields, *changed.values())))


def operands_of(condition: Condition) -> tuple[Sequence[Condition], bool, bool] | None:
    """Return the conditions that a condition consists of, None if it is a single one.

    If one of them has the second value as its result, the condition's result is the third value,
    otherwise the opposite of that.
    """
    if len(condition) > 1:
        return [{name: value} for name, value in condition.items()], *_LOGICAL["$and"]
    for name, value in condition.items():
        if name in _LOGICAL:
            return value, *_LOGICAL[name]
    return None


def projected(stage: Mapping[str, Any], event: bytes) -> bytes | None:
    """Return the event after a stage that keeps or removes fields; None if it does more."""
    allowance = Allowance(MOST_WORK + _COPIES * len(event) // UNIT_BYTES)
    try:
        return compile_filter([stage]).project(event, allowance)
    except (Declined, ValueError, IndexError, struct.error):
        return None


_TARGETS: Final = 2
"""Completed events of one request, as a multiple of the target for the documents of one."""
_FIELDS: Final = ("collation", "comment", "let", "allowDiskUse")


class Transformed(NamedTuple):
    """The results of the first ``consumed`` events: at most one for each, in their order."""

    consumed: int
    events: list[bytes]


class UserStages:
    """Runs the stages of one stream over its events.

    A change stream's stages process each event by itself, so they can run over ``$documents``
    on any server.
    """

    def __init__(self, plan: LookupPlan, reads: UpstreamReads) -> None:
        self._plan = plan
        self._reads = reads
        extras = plan.remote.extras
        self._fields = {name: extras[name] for name in _FIELDS if name in extras}

    async def check(self, held: Holding) -> None:
        """Validate the stages on the upstream mongos; raises its CommandError."""
        await self._run(self._plan.user_stages, [], held)

    async def transform(self, events: Sequence[bytes], held: Holding) -> Transformed:
        """Run the stages over the events, or over the first of them, at least one.

        ``held`` counts the results.

        Raises CommandError if a stage fails for the first event or changes its ``_id`` (280).
        """
        count, size = 0, 0
        most = _TARGETS * self._reads.target_bytes(held)
        if len(events[0]) > MAX_EVENT_BYTES:
            return Transformed(1, await self._transform_large(events[0], held))
        for event in events:
            size += len(event)
            if count and size > most:
                break
            count += 1
        while True:
            part = events[:count]
            try:
                results = await self._run(self._plan.stages, part, held)
                return Transformed(count, _in_order(part, results))
            except CommandError as error:
                if count == 1 or error.code in RESUMABLE_CODES:
                    raise
                # The events before the one that fails are delivered.
                count //= 2

    async def _transform_large(self, event: bytes, held: Holding) -> list[bytes]:
        """Return the results of an event that no command can carry.

        Raises CommandError 10334 if a stage uses fields that are too large together, or may use any
        fields, or the result is as large and the stream does not split events.
        """
        for place, stage in enumerate(self._plan.stages):
            if len(event) <= MAX_EVENT_BYTES:
                results = await self._run(self._plan.stages[place:], [event], held)
                return _in_order([event], results)
            name = stage_name(stage)
            if name != "$match":
                event = await self._reshaped(stage, event, held)
            elif not await self._meets(stage[name], event, held):
                return []
        if len(event) > MAX_EVENT_BYTES and not self._plan.splits:
            raise too_large(event, len(event))
        return [event]

    async def _reshaped(self, stage: Mapping[str, Any], event: bytes, held: Holding) -> bytes:
        whole = projected(stage, event)
        if whole is not None:
            return whole
        part = part_for(stage, event)
        if len(part) > MAX_EVENT_BYTES:
            raise too_large(event, len(part))
        marked = document_of(part[4:-1] + _MARK)
        [result] = _in_order([part], await self._run([stage], [marked], held))
        return rejoined(event, part, result)

    async def _meets(self, condition: Condition, event: bytes, held: Holding) -> bool:
        part = part_for({"$match": condition}, event)
        if len(part) <= MAX_EVENT_BYTES:
            return bool(await self._run([{"$match": condition}], [part], held))
        divided = operands_of(condition)
        if divided is None:
            raise too_large(event, len(part))
        operands, decisive, result = divided
        for operand in operands:
            if await self._meets(operand, event, held) is decisive:
                return result
        return not result

    async def _run(
        self, stages: Sequence[Mapping[str, Any]], events: Sequence[bytes], held: Holding
    ) -> list[bytes]:
        documents = [RawBSONDocument(event) for event in events]
        command = {
            "aggregate": 1,
            "pipeline": [{"$documents": {"$literal": documents}}, *stages],
            "cursor": {"batchSize": len(events) + 1},
            **self._fields,
        }
        return (await self._reads.read(self._plan.remote.database, command, held)).documents


def _in_order(events: Sequence[bytes], results: Sequence[bytes]) -> list[bytes]:
    """Check that the results have the ``_id`` of their input events, in order.

    Raises CommandError 280 as mongos does.
    """
    tokens = iter(map(token_of, events))
    for result in results:
        identifier = find(result, b"_id")
        own_token = None
        if identifier is not None and identifier.type == DOCUMENT:
            own_token = result[identifier.start : identifier.end]
        if own_token is None or all(own_token != token for token in tokens):
            document = {} if identifier is None else {"_id": decode(result)["_id"]}
            expected = {"_id": decode(token_of(events[0]))}
            raise CommandError(
                ErrorCode.ChangeStreamFatalError,
                "Encountered an event whose _id field, which contains the resume token, was "
                "modified by the pipeline. Modifying the _id field of an event makes it "
                "impossible to resume the stream from that point. Only transformations that "
                f"retain the unmodified _id field are allowed. Expected: {render(expected)} but "
                f"found: {render(document)}",
            )
    return list(results)
