"""Whether a name is that of a collection or of a view, by the cluster's catalog."""

from collections.abc import Mapping
from typing import Any

import structlog

from router.catalog.cluster import Cluster
from router.catalog.shard_list import CONFIG
from shard_client.errors import CommandError, NetworkError

log = structlog.get_logger()


async def may_be_view(cluster: Cluster, database: str, collection: str, timeout: float) -> bool:
    """Return whether a name is a view's, or the cluster's catalog does not tell.

    A database's views are on its primary shard. ``timeout`` bounds the wait for each of two
    replies, in seconds. The router's user needs no right beyond those of opening a stream.
    """
    find = {"find": "databases", "filter": {"_id": database}, "limit": 1, "singleBatch": True}
    # With these options a user is shown the names of what it may read.
    listing = {"listCollections": 1, "filter": {"name": collection}, "nameOnly": True}
    shard = cluster.catalog
    try:
        if cluster.sharded:
            listed = await _first(cluster, CONFIG, "config", find, timeout)
            if listed is None:
                return False
            shard = str(listed["primary"])
            if shard not in cluster.known_shards:
                await cluster.shards(timeout)
        asked = {**listing, "authorizedCollections": True}
        named = await _first(cluster, shard, database, asked, timeout)
        return named is not None and named["type"] != "collection"
    except (CommandError, NetworkError, KeyError, TypeError) as error:
        log.debug("the catalog does not tell views", database=database, error=str(error))
        return True


async def _first(
    cluster: Cluster, target: str, database: str, command: Mapping[str, Any], timeout: float
) -> Mapping[str, Any] | None:
    """Return the first document of a command's reply from a primary, or None."""
    reply = await cluster.command(target, database, command, timeout)
    documents = reply["cursor"]["firstBatch"]
    return documents[0] if documents else None
