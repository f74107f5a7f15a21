"""A database that answers commands with the replies of a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import bson
from pymongo.read_concern import ReadConcern


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

    def __getitem__(self, name: str) -> ServerReplies:
        return self

    def list_collections(self, filter: Any) -> list[dict[str, Any]]:  # noqa: A002
        return [{"name": self.names.pop(0) if len(self.names) > 1 else self.names[0]}]

    def get_collection(self, name: str, read_concern: ReadConcern) -> ServerReplies:
        self.asked.append(read_concern.document)
        return self

    def find_raw_batches(self, *given: Any, **fields: Any) -> _Cursor:
        return _Cursor(self.replies.pop(0))


class _Cursor:
    def __init__(self, content: list[Any]) -> None:
        self.content = list(content)

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __iter__(self) -> Iterator[bytes]:
        """Yield the documents before each exception, and raise it."""
        replies = groupby(self.content, lambda each: isinstance(each, Exception))
        for fails, found in replies:
            if fails:
                raise next(found)
            yield b"".join(bson.encode({"_id": each}) for each in found)
