"""Lookup of the documents before and after a change, for streams that request them."""

from collections.abc import Mapping
from typing import Any, Final

from embedded.change_streams.events import ChangeEvent
from embedded.change_streams.host import StreamHost
from embedded.change_streams.request import StreamRequest
from embedded.storage.diff import apply_diff
from embedded.storage.shell_text import document_text
from shard_client.errors import CommandError

_WITH_PRE_IMAGE: Final = frozenset({"update", "replace", "delete"})


class ImageLookup:
    """Fills in fullDocument and fullDocumentBeforeChange (docs/protocol.md#events).

    The lookup reads this member only, in the event's own collection by its UUID. With token version
    2 it reads the collection that has the event's namespace now, which may have been created anew,
    unless the client sets matchCollectionUUIDForUpdateLookup.
    """

    def __init__(self, host: StreamHost, request: StreamRequest) -> None:
        self._host = host
        self._before = request.before_change
        self._after = request.full_document
        self._same_collection = (
            host.token_version == 1 or "matchCollectionUUIDForUpdateLookup" in request.flags
        )
        self.needed = self._before != "off" or self._after != "default"

    def fill(self, event: ChangeEvent) -> None:
        """Look up the images that the stream requests.

        Raises:
            CommandError: 47 NoMatchingDocument if a required image does not exist.
        """
        kind = event.operation_type
        before: dict[str, Any] | None = None
        if self._before != "off" and kind in _WITH_PRE_IMAGE:
            before = self._pre_image(event)
            if before is None and self._before == "required":
                raise _not_found(
                    "Change stream was configured to require a pre-image for all update, delete "
                    "and replace events, but the pre-image was not found for event: ",
                    event.document,
                )
            event.document["fullDocumentBeforeChange"] = before
        if self._after != "default" and kind == "update":
            after = self._post_image(event, before)
            if after is None and self._after == "required":
                raise _not_found(
                    "Change stream was configured to require a post-image for all update events, "
                    "but the post-image was not found for event: ",
                    event.document,
                )
            event.document["fullDocument"] = after

    def _pre_image(self, event: ChangeEvent) -> dict[str, Any] | None:
        operation = event.operation
        return self._host.pre_image(
            operation.entry["ui"], operation.image_ts, operation.image_index
        )

    def _post_image(
        self, event: ChangeEvent, before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        operation = event.operation
        if self._after == "updateLookup":
            ns, uuid = operation.entry["ns"], operation.entry.get("ui")
            present = None if self._same_collection else self._host.catalog.get(ns)
            if present is not None:
                uuid = present.uuid
            return self._host.find_one(ns, uuid, dict(operation.entry["o2"]))
        if self._before == "off":
            before = self._pre_image(event)
        return None if before is None else apply_diff(before, operation.entry["o"]["diff"])


def _not_found(message: str, event: Mapping[str, Any]) -> CommandError:
    named = ("operationType", "ns", "clusterTime", "txnNumber")
    what = {name: event[name] for name in named if name in event}
    return CommandError(47, message + document_text(what), code_name="NoMatchingDocument")
