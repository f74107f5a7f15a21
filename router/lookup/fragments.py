"""``$changeStreamSplitLargeEvent`` after the lookup: large events in, their fragments out.

Source: MongoDB's manual on that stage; docs/protocol.md#resume-tokens and docs/protocol.md#events.
Shards split events that are too large even without the document. Such fragments are joined before
the lookup.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import bson

from router.lookup.events import MAX_EVENT_BYTES
from router.tokens.resume_token import ResumeToken, token_of
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import token_data
from shard_client.wire.bson_slices import DOCUMENT, document_of, find, iter_elements, string_value
from shard_client.wire.documents import decode

MAX_WHOLE_BYTES: Final = MAX_EVENT_BYTES - 8 * 1024
"""The maximum size of an event that is not split, and of a fragment."""

_END: Final = "04"


class Splitter:
    """Splits the large events of one stream.

    ``resume`` is the client's token if it names a fragment. The events before it and the fragments
    up to and including it are left out.
    """

    def __init__(self, resume: ResumeToken | None) -> None:
        self._resume = resume

    @property
    def resuming(self) -> bytes | None:
        """The raw token to resume after, or None once its event has arrived."""
        return None if self._resume is None else self._resume.raw

    def split(self, event: bytes) -> list[bytes]:
        """Return the documents that the client receives for ``event``.

        Events must come in the stream's order. Raises CommandError: 280 if the point to resume
        after is absent, or the event is no longer split in the same way; 7182500 if a single field
        is too large for a fragment.
        """
        resume, skip = self._resume, 0
        if resume is not None:
            key, wanted = token_data(token_of(event)), _whole_key(resume)
            if key < wanted:
                return []
            self._resume = None
            if key > wanted:
                raise _fatal(
                    "cannot resume stream; the resume token was not found. "
                    f'{{_data: "{resume.data.decode("ascii")}"}}'
                )
            skip = (resume.fragment_num or 0) + 1
        if len(event) <= MAX_WHOLE_BYTES:
            if skip:
                raise _fatal(
                    "Attempted to resume from a split event fragment, but the event in the resumed "
                    "stream was not large enough to be split"
                )
            return [event]
        fragments = _fragments(event)
        if skip > len(fragments):
            raise _fatal(
                "Attempted to resume from a split event, but the resumed stream produced a "
                "different split. Ensure that the pipeline used to resume is the same as the "
                "original"
            )
        return fragments[skip:]


def whole_events(events: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Join fragments of updates; return the events, and the number of fragments of each.

    Fragments of other events stay as they are. If a rest of ``events`` is left over, it is an
    update whose last fragments have not arrived yet.
    """
    whole: list[bytes] = []
    counts: list[int] = []
    position = 0
    while position < len(events):
        of = _fragments_in(events[position])
        if of > 1 and _is_update(events[position : position + of]):
            if position + of > len(events):
                break
            whole.append(_joined(events[position : position + of]))
            counts.append(of)
        else:
            whole.append(events[position])
            counts.append(1)
        position += counts[-1]
    return whole, counts


def _fragments_in(event: bytes) -> int:
    """Return the fragment count if this is a first fragment, 1 for any other event."""
    split = find(event, b"splitEvent")
    if split is None or split.type != DOCUMENT:
        return 1
    fields = decode(event[split.start : split.end])
    return int(fields.get("of", 1)) if fields.get("fragment") == 1 else 1


def _is_update(fragments: Iterable[bytes]) -> bool:
    for fragment in fragments:
        kind = find(fragment, b"operationType")
        if kind is not None:
            return string_value(fragment, kind) == b"update"
    return True  # the smallest fields come first, so operationType is in a later fragment


def _joined(fragments: Sequence[bytes]) -> bytes:
    token = decode(token_of(fragments[0]))
    parsed = ResumeToken.parse(token)
    fields = [b"\x03_id\0" + bson.encode({**token, "_data": _whole_key(parsed).decode("ascii")})]
    for fragment in fragments:
        fields += [
            field for name, field in _fields(fragment) if name not in (b"_id", b"splitEvent")
        ]
    return document_of(b"".join(fields))


def _fragments(event: bytes) -> list[bytes]:
    """Distribute the event's fields over fragments, the smallest fields first."""
    token = decode(token_of(event))
    fields = sorted((len(field), name, field) for name, field in _fields(event) if name != b"_id")
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


def _head(token: dict[str, object], number: int, of: int) -> list[bytes]:
    """Return the first fields of fragment ``number``, counted from 0."""
    fragment = "29" if not number else f"2B{number << 1:02X}"
    data = str(token["_data"])[: -len(_END)] + fragment + _END
    return [
        b"\x03_id\0" + bson.encode({**token, "_data": data}),
        b"\x03splitEvent\0" + bson.encode({"fragment": number + 1, "of": of}),
    ]


def _whole_key(token: ResumeToken) -> bytes:
    """Return the sort key of the whole event to which a fragment's token belongs."""
    if token.fragment_num is None:
        return token.data
    digits = 2 if not token.fragment_num else 4
    return token.data[: -len(_END) - digits] + _END.encode()


def _fields(document: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (name, document[start - len(name) - 2 : end])
        for _, name, start, end in iter_elements(document)
    ]


def _fatal(message: str) -> CommandError:
    return CommandError(ErrorCode.ChangeStreamFatalError, message)
