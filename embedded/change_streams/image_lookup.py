"""Lookup of the documents before and after a change, for streams that request them."""

from collections.abc import Mapping
from typing import Any, Final

from embedded.change_streams.events import ChangeEvent
from embedded.change_streams.request import StreamRequest
from embedded.errors import CommandError, ErrorCode
from embedded.images import Images
from embedded.member import Member
from embedded.storage.shell_text import document_text

_WITH_PRE_IMAGE: Final = frozenset({"update", "replace", "delete"})


class ImageLookup:
    """Fills in fullDocument and fullDocumentBeforeChange (docs/protocol.md#events).

    The lookup reads this member only, in the event's own collection by its UUID. Newer servers read
    the collection that has the event's namespace now, which may have been created anew, unless the
    client sets matchCollectionUUIDForUpdateLookup.
    """

    def __init__(self, member: Member, request: StreamRequest) -> None:
        self._member = member
        self._before = request.before_change
        self._after = request.full_document
        self._same_collection = (
            member.server_version.looks_up_by_uuid
            or "matchCollectionUUIDForUpdateLookup" in request.flags
        )
        self.needed = self._before != "off" or self._after != "default"

    def fill(self, event: ChangeEvent) -> None:
        """Look up the images that the stream requests.

        Raises:
            CommandError: 47 NoMatchingDocument if a required image does not exist.
        """
        kind, operation = event.operation_type, event.operation
        stored: Images | None = None
        if kind in _WITH_PRE_IMAGE and "ui" in operation.entry:
            stored = self._member.journal.images.get(
                operation.entry["ui"], operation.image_ts, operation.image_index
            )
        if self._before != "off" and kind in _WITH_PRE_IMAGE:
            if stored is None and self._before == "required":
                raise _not_found(
                    "Change stream was configured to require a pre-image for all update, delete "
                    "and replace events, but the pre-image was not found for event: ",
                    event.document,
                )
            event.document["fullDocumentBeforeChange"] = stored.before if stored else None
        if self._after == "updateLookup" and kind == "update":
            event.document["fullDocument"] = self._looked_up(event)
        elif self._after != "default" and kind == "update":
            if stored is None and self._after == "required":
                raise _not_found(
                    "Change stream was configured to require a post-image for all update events, "
                    "but the post-image was not found for event: ",
                    event.document,
                )
            event.document["fullDocument"] = stored.after if stored else None

    def _looked_up(self, event: ChangeEvent) -> dict[str, Any] | None:
        entry = event.operation.entry
        ns, uuid = entry["ns"], entry.get("ui")
        present = None if self._same_collection else self._member.catalog.get(ns)
        if present is not None:
            uuid = present.uuid
        return self._member.find_one(ns, uuid, dict(entry["o2"]))


def _not_found(message: str, event: Mapping[str, Any]) -> CommandError:
    named = ("operationType", "ns", "clusterTime", "txnNumber")
    what = {name: event[name] for name in named if name in event}
    return CommandError(ErrorCode.NoMatchingDocument, message + document_text(what))
