"""Comparing a reply with a recorded one, without the values that differ between clusters."""

from collections.abc import Collection
from typing import Any

VARIES = frozenset(
    {
        "processId",
        "localTime",
        "connectionId",
        "$clusterTime",
        "operationTime",
        "gitVersion",
        "javascriptEngine",
        "openssl",
        "you",
        "argv",
        "id",
    }
)
"""Fields whose values differ between clusters, processes and machines."""


def assert_same(
    ours: Any, recorded: Any, path: str = "", *, varies: Collection[str] = VARIES
) -> None:
    """Require the same fields, order and types, and the same values where they are fixed."""
    assert type(ours) is type(recorded), f"{path}: {ours!r} is no {type(recorded)}"
    if path.rpartition(".")[2] in varies:
        return
    if isinstance(recorded, dict):
        assert list(ours) == list(recorded), f"{path}: {ours!r} is not like {recorded!r}"
        for name, value in recorded.items():
            assert_same(ours[name], value, f"{path}.{name}", varies=varies)
    else:
        assert ours == recorded, f"{path}: {ours!r} is not {recorded!r}"
