"""A database that answers commands with the replies of a list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bson


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
        self.read_preference = self.codec_options = None

    def __getitem__(self, name: str) -> ServerReplies:
        return self

    def list_collections(self, filter: Any) -> list[dict[str, Any]]:  # noqa: A002
        return [{"name": self.names.pop(0) if len(self.names) > 1 else self.names[0]}]

    def cursor_command(self, *names: str, **fields: Any) -> _Cursor:
        self.asked.append(fields["readConcern"])
        return _Cursor(self.replies.pop(0))


class _Cursor:
    def __init__(self, content: list[Any]) -> None:
        self.content = list(content)

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def batch_size(self, documents: int) -> _Cursor:
        return self

    @property
    def alive(self) -> bool:
        return bool(self.content)

    def _next_batch(self, documents: list[Any]) -> None:
        """Append the documents before the next exception, or raise it."""
        if isinstance(self.content[0], Exception):
            raise self.content.pop(0)
        while self.content and not isinstance(self.content[0], Exception):
            document = bson.encode({"_id": self.content.pop(0)})
            documents.append(bson.raw_bson.RawBSONDocument(document))
