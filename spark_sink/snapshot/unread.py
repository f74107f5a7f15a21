"""What a table lacks: whole collections, all that its scope gains, and single documents.

Each has the token from which on the table lacks it. Snapshots read it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_sink.dataclass_json import from_document, to_document
from spark_sink.snapshot.selections import Namespace, ScopeGain


@dataclass(frozen=True)
class LostDocument:
    """A document that a table lacks, because an event's update could not be applied to it.

    `key` is its `_id` as canonical extended JSON, `token` the event's.
    """

    database: str
    collection: str
    key: str
    token: str

    @property
    def namespace(self) -> Namespace:
        """Its collection."""
        return self.database, self.collection


CollectionTokens = Mapping[Namespace | ScopeGain, str]
"""A token for each collection, and for all that a scope gains.

For unread collections it is the one after which the table lacks documents.
"""


def token_in(tokens: CollectionTokens, database: str, collection: str) -> str:
    """Return the latest token that `tokens` have for a collection; empty for none."""
    gains = (gain for gain in tokens if isinstance(gain, ScopeGain))
    matching = [tokens[gain] for gain in gains if gain.accepts(database, collection)]
    return max([*matching, tokens.get((database, collection), "")])


def unread_names(unread: CollectionTokens) -> str:
    """Return the names of the first unread collections, for messages; empty for none."""
    names = (str(name) if isinstance(name, ScopeGain) else ".".join(name) for name in unread)
    return ", ".join(sorted(names)[:20])


def tokens_document(tokens: CollectionTokens) -> list[list[Any]]:
    """Return tokens as a part of a state's document."""
    pairs = (
        [to_document(part), token] if isinstance(part, ScopeGain) else [*part, token]
        for part, token in tokens.items()
    )
    return sorted(pairs, key=str)


def tokens_from(document: Sequence[Sequence[Any]]) -> CollectionTokens:
    """Return what `tokens_document` wrote."""
    return {
        (part[0], part[1]) if part[1:] else from_document(ScopeGain, part[0]): token
        for *part, token in document
    }
