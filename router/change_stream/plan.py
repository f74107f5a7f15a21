"""What the shards and the config server are asked (docs/design.md, sections 7 and 8)."""

from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from router.change_stream.request import StreamRequest


def shard_command(
    request: StreamRequest,
    *,
    start_at: Timestamp | None = None,
    start_after: Mapping[str, Any] | bytes | None = None,
    resume_after: Mapping[str, Any] | bytes | None = None,
    batch_size: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Return database and ``aggregate`` command that open ``request`` on one shard.

    Exactly one starting point: ``start_at`` at first opening, ``resume_after`` (a token document of
    that shard's own, decoded or raw) when its cursor is reopened after a failure, ``start_after``
    when it is reopened after a swallowed invalidate.
    """
    raise NotImplementedError


def topology_command(
    start_at: Timestamp | None = None,
    *,
    resume_after: Mapping[str, Any] | bytes | None = None,
    batch_size: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Return database and command that watch ``config.shards`` on the config server."""
    raise NotImplementedError
