"""The fragments into which `$changeStreamSplitLargeEvent` splits events of more than 16 MiB.

A fragment has some of the event's fields, and `splitEvent` with its number and the number of all of
them. The fragments of an event follow each other in the stream, since their tokens begin alike
(docs/protocol.md#resume-tokens).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bson.raw_bson import RawBSONDocument

from spark_sink.events.slices import DOCUMENT, NULL, Slice, document_of, fields_of

_SPLIT = b"splitEvent"
_NOTHING = Slice(NULL, b"")


def join_fragments(events: Iterable[RawBSONDocument]) -> Iterator[RawBSONDocument]:
    """Return the events, fragments joined, each with the token of its last fragment.

    If a query began or ended between the fragments of an event, those are returned as they are.
    """
    parts: list[RawBSONDocument] = []
    for event in events:
        place = fragment_of(event)
        number, of = place or (0, 0)
        if number != len(parts) + 1:
            yield from parts
            parts = []
        if number != len(parts) + 1:
            yield event
            continue
        parts.append(event)
        if number == of:
            yield _whole(parts)
            parts = []
    yield from parts


def fragment_of(event: RawBSONDocument) -> tuple[int, int] | None:
    """Return the number of a fragment, from 1, and of all of its event; None for a whole event."""
    split = fields_of(bytes(event.raw)).get(_SPLIT)
    if split is None or split.kind != DOCUMENT:
        return None
    fields = fields_of(split.value)
    number = fields.get(b"fragment", _NOTHING).whole_number()
    of = fields.get(b"of", _NOTHING).whole_number()
    return None if number is None or of is None else (number, of)


def _whole(parts: list[RawBSONDocument]) -> RawBSONDocument:
    fields: dict[bytes, Slice] = {}
    for part in parts:
        fields |= fields_of(bytes(part.raw))  # the token stays at the front, and is the last one
    del fields[_SPLIT]
    return RawBSONDocument(document_of(fields.items()))
