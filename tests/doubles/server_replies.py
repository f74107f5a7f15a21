"""A database that answers commands with the replies of a list."""

from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Self

import bson
from pymongo.read_concern import ReadConcern


class _Cursor(nullcontext[None]):
    def __init__(self, content: list[Any]) -> None:
        super().__init__()
        self.content = list(content)
        self._data: deque[Any] = deque()

    @property
    def alive(self) -> bool:
        return bool(self.content)

    def _next_batch(self, found: list[bytes]) -> None:
        """Append the documents before the next exception, or raise it."""
        if isinstance(self.content[0], Exception):
            raise self.content.pop(0)
        while self.content and not isinstance(self.content[0], Exception):
            found.append(bson.encode({"_id": self.content.pop(0)}))


class ServerReplies:
    """Replaces a pymongo client: each command takes the next reply.

    A reply lists the ids of documents, and the exceptions that are raised between them. ``asked``
    has the read concern of each command. ``names`` are those that the collection has, one for each
    time that they are listed, and the last one from then on.
    """

    def __init__(self, *replies: Any, names: Iterable[str] = ("c",)) -> None:
        self.replies = list(replies)
        self.names = list(names)
        self.asked: list[dict[str, Any]] = []

    def __getitem__(self, name: str) -> Self:
        return self

    def list_collections(self, filter: Any) -> list[dict[str, Any]]:  # noqa: A002
        return [{"name": self.names.pop(0) if len(self.names) > 1 else self.names[0]}]

    def get_collection(self, name: str, read_concern: ReadConcern) -> Self:
        self.asked.append(read_concern.document)
        return self

    def find(self, *given: Any, **fields: Any) -> _Cursor:
        return _Cursor(self.replies.pop(0))
