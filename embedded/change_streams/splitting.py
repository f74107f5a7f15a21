"""``$changeStreamSplitLargeEvent``: split an event that is too large into fragments."""

from dataclasses import replace
from typing import Any, Final

import bson

from embedded.change_streams.events import ChangeEvent, encode_event
from embedded.errors import CommandError, ErrorCode
from shard_client.bson.resume_token import ResumeToken
from shard_client.wire.frames import MAX_REPLY_DOCUMENT_SIZE

MAX_INTERNAL_SIZE: Final = MAX_REPLY_DOCUMENT_SIZE
"""The largest document that a server builds, in bytes."""

MAX_EVENT_SIZE: Final = MAX_INTERNAL_SIZE - 8 * 1024
_ELEMENT_OF_EMPTY: Final = len(bson.encode({}))


class Splitter:
    """Splits the large events of one stream (docs/protocol.md#events).

    ``resume`` is the client's token. If it names a fragment, the fragments before that one are
    dropped from its event.
    """

    def __init__(self, resume: ResumeToken) -> None:
        self._resume = None if resume.fragment_num is None else resume

    def split(self, event: ChangeEvent) -> list[ChangeEvent]:
        """Return the event, or its fragments.

        Raises:
            CommandError: 280 ChangeStreamFatalError if the resumed event has no such fragment,
                7182500 or 7182502 if the event cannot be split.
        """
        resume, self._resume = self._resume, None
        resumed = resume is not None and resume.whole_key == event.token.data
        skip = (resume.fragment_num or 0) if resume is not None and resumed else 0
        if len(encode_event(event.document)) <= MAX_EVENT_SIZE:
            if resumed:
                raise _fatal(
                    "Attempted to resume from a split event fragment, but the event in the resumed "
                    "stream was not large enough to be split"
                )
            return [event]
        fragments = _fragments(event)
        if skip and skip >= len(fragments):
            raise _fatal(
                "Attempted to resume from a split event, but the resumed stream produced a "
                "different split. Ensure that the pipeline used to resume is the same as the "
                "original"
            )
        return fragments[skip:]


def _fatal(message: str) -> CommandError:
    return CommandError(ErrorCode.ChangeStreamFatalError, message)


def _fragments(event: ChangeEvent) -> list[ChangeEvent]:
    """Distribute the event's fields over fragments, the small fields first."""
    fields = sorted(
        (len(bson.encode({name: value})) - _ELEMENT_OF_EMPTY, name)
        for name, value in event.document.items()
        if name != "_id"
    )
    if not fields:
        raise CommandError(
            7182502, "Cannot split an empty event or an event containing solely '_id' field"
        )
    limit = MAX_EVENT_SIZE - len(bson.encode(event.token.document))
    parts: list[tuple[ResumeToken, dict[str, Any]]] = []
    size = limit
    for field_size, name in fields:
        if not parts or size + field_size > limit:
            token = event.token.with_fragment(len(parts))
            head = {"_id": token.document, "splitEvent": {"fragment": len(parts) + 1, "of": 0}}
            parts.append((token, head))
            size = len(bson.encode(head))
        parts[-1][1][name] = event.document[name]
        size += field_size
        if size > limit:
            raise CommandError(
                7182500,
                f"Splitting change event failed: fragment size {size} is greater than maximum "
                f"allowed fragment size {limit}",
            )
    for _, document in parts:
        document["splitEvent"]["of"] = len(parts)
    return [replace(event, document=document, token=token) for token, document in parts]
