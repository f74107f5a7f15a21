"""The wire versions of a cluster's members, and what depends on them."""

import asyncio
from collections.abc import Mapping
from typing import Any

from router.catalog.shard_list import CONFIG

WIRE_VERSION_OF_8_0 = 25
_OF_TOKEN_2 = 21


class WireVersions:
    """The wire version in the last hello of each replica set.

    ``changed`` is set when a hello has another one than the last hello of its replica set.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._known: dict[str, int] = {}

    def record(self, target: str, hello: Mapping[str, Any]) -> None:
        """Record the version in a hello of one of the target's members."""
        version = int(hello.get("maxWireVersion", 0))
        if self._known.setdefault(target, version) != version:
            self._known[target] = version
            self.changed.set()

    def forget(self, target: str) -> None:
        """Forget the version of a shard that was removed."""
        self._known.pop(target, None)

    @property
    def of_tokens(self) -> int:
        """The version of the resume tokens of the known members
        (docs/protocol.md#resume-tokens)."""
        return 2 if self._lowest >= _OF_TOKEN_2 else 1

    @property
    def undefined_is_null(self) -> bool:
        """Whether null equals undefined in a query: unless all known members have MongoDB 8.0."""
        return self._lowest < WIRE_VERSION_OF_8_0

    @property
    def _lowest(self) -> int:
        known = [version for target, version in self._known.items() if target != CONFIG]
        return min(known or self._known.values(), default=0)
