"""The versions of MongoDB's servers that an embedded cluster behaves as."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """A version of the servers, by what it does unlike others (docs/protocol.md)."""

    number: str
    wire_version: int
    token_version: int
    """The version of resume tokens; of streams that split events it is 2 in any case."""
    shares_inserts: bool
    """Whether the documents of an insert share an oplog entry, and so a cluster time."""
    looks_up_by_uuid: bool
    """Whether lookups read an event's own collection, not the one that has its namespace now."""
    shows_removed_shards: bool
    """Whether the removal of a shard is an event of config.shards."""
    drops_what_is_missing: bool
    """Whether ``drop`` of a collection that does not exist succeeds."""
    stream_options: frozenset[str] = frozenset()
    """The options of ``$changeStream`` beyond those of all versions."""


V6_0 = ServerVersion(
    "6.0.15",
    wire_version=17,
    token_version=1,
    shares_inserts=False,
    looks_up_by_uuid=True,
    shows_removed_shards=False,
    drops_what_is_missing=False,
)
V8_2 = ServerVersion(
    "8.2.0",
    wire_version=27,
    token_version=2,
    shares_inserts=True,
    looks_up_by_uuid=False,
    shows_removed_shards=True,
    drops_what_is_missing=True,
    stream_options=frozenset({"matchCollectionUUIDForUpdateLookup"}),
)
