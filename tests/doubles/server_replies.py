"""A database that answers commands with the replies of a list."""

from __future__ import annotations

from typing import Any

import bson


class ServerReplies:
    """Replaces a pymongo client: each command takes the next reply.

    A reply lists the ids of documents, and the exceptions that are raised between them. ``asked``
    has the read concern of each command.
    """

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.asked: list[dict[str, Any]] = []
        self.read_preference = self.codec_options = None

    def __getitem__(self, name: str) -> ServerReplies:
        return self

    def list_collections(self, filter: Any) -> list[dict[str, Any]]:  # noqa: A002
        return [{"name": "c"}]

    def cursor_command(self, *names: str, **fields: Any) -> _Cursor:
        self.asked.append(fields["readConcern"])
        return _Cursor(self.replies.pop(0))


class _Cursor:
    def __init__(self, content: list[Any]) -> None:
        self.content = content

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __iter__(self) -> Any:
        for each in self.content:
            if isinstance(each, Exception):
                raise each
            yield bson.raw_bson.RawBSONDocument(bson.encode({"_id": each}))
