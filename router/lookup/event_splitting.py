"""``$changeStreamSplitLargeEvent`` after the lookup: large events in, their fragments out.

Source: MongoDB's manual on that stage; docs/protocol.md#resume-tokens and docs/protocol.md#events.
Shards split events that are too large even without the document. Such fragments are joined before
the lookup.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import bson

from router.lookup.events import MAX_EVENT_BYTES
from router.stream.readers.resume_point import fragment_numbers
from shard_client.bson.resume_token import NEWEST, ResumeToken
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import token_of
from shard_client.wire.bson_slices import document_of, find, raw_fields, string_value
from shard_client.wire.documents import decode

MAX_WHOLE_BYTES: Final = MAX_EVENT_BYTES - 8 * 1024
"""The maximum size of an event that is not split, and of a fragment."""

_ORDER: Final = (
    b"txnNumber", b"lsid", b"_id", b"operationType", b"clusterTime", b"collectionUUID",
    b"wallTime", b"ns", b"documentKey", b"updateDescription", b"rawUpdateDescription",
    b"fullDocumentBeforeChange",
)  # fmt: skip
"""The fields of an update before its lookup, in the order of servers."""


def split(event: bytes) -> list[bytes]:
    """Return the documents that a client receives for ``event``: itself, or its fragments.

    The smallest fields come first.

    Raises CommandError 7182500 if a single field is too large for a fragment.
    """
    if len(event) <= MAX_WHOLE_BYTES:
        return [event]
    token = ResumeToken.parse(decode(token_of(event)))
    if (kind := find(event, b"operationType")) is not None:
        # Beside the token of version 1 that the stream resumes after, events have this version.
        token = token.in_version(NEWEST, string_value(event, kind)) or token
    fields = sorted(
        (len(field), name, field) for name, field in raw_fields(event) if name != b"_id"
    )
    limit = MAX_WHOLE_BYTES - len(token_of(event))
    parts: list[list[bytes]] = []
    size = limit
    for length, _, field in fields:
        if not parts or size + length > limit:
            parts.append([])
            size = len(document_of(b"".join(_head(token, len(parts) - 1, 1))))
        parts[-1].append(field)
        size += length
        if size > limit:
            raise CommandError(
                7182500,
                f"Splitting change event failed: fragment size {size} is greater than maximum "
                f"allowed fragment size {limit}",
            )
    return [
        document_of(b"".join((*_head(token, number, len(parts)), *part)))
        for number, part in enumerate(parts)
    ]


def whole_events(events: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Join fragments of updates; return the events, and the number of fragments of each.

    Fragments of other events stay as they are. If a rest of ``events`` is left over, it is an
    update whose last fragments have not arrived yet.
    """
    whole: list[bytes] = []
    counts: list[int] = []
    position = 0
    while position < len(events):
        number, total = fragment_numbers(events[position])
        if number == 1 < total and _is_update(events[position : position + total]):
            if position + total > len(events):
                break
            whole.append(_joined(events[position : position + total]))
            counts.append(total)
        else:
            whole.append(events[position])
            counts.append(1)
        position += counts[-1]
    return whole, counts


def _is_update(fragments: Iterable[bytes]) -> bool:
    for fragment in fragments:
        kind = find(fragment, b"operationType")
        if kind is not None:
            return string_value(fragment, kind) == b"update"
    return True  # the smallest fields come first, so operationType is in a later fragment


def _joined(fragments: Sequence[bytes]) -> bytes:
    whole = ResumeToken.parse(decode(token_of(fragments[0]))).without_fragment()
    fields = {name: field for fragment in fragments for name, field in raw_fields(fragment)}
    del fields[b"splitEvent"]
    fields[b"_id"] = b"\x03_id\0" + whole.raw
    ordered = [fields.pop(name) for name in _ORDER if name in fields]
    return document_of(b"".join((*ordered, *fields.values())))


def _head(token: ResumeToken, number: int, total: int) -> list[bytes]:
    """Return the first fields of fragment ``number``, counted from 0, of ``total``."""
    return [
        b"\x03_id\0" + token.with_fragment(number).raw,
        b"\x03splitEvent\0" + bson.encode({"fragment": number + 1, "of": total}),
    ]
