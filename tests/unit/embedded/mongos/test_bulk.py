"""Splitting bulk writes by shard and combining the replies."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from embedded.mongos.bulk import BulkResult, ordered_batches, unordered_batches
from shard_client.errors import CommandError


def named(name: str | None) -> Any:
    return cast(Any, name)


@given(st.lists(st.sampled_from(["a", "b", None])))
def test_ordered_batches_keep_order_with_one_shard_each(owners: list[str | None]) -> None:
    batches = list(ordered_batches(map(named, owners)))
    assert [at for _, positions in batches for at in positions] == list(range(len(owners)))
    for owner, positions in batches:
        assert all(owners[at] == owner for at in positions)
        assert owner is not None or len(positions) == 1


@given(st.lists(st.sampled_from(["a", "b", None])))
def test_unordered_batches_omit_writes_without_a_target(owners: list[str | None]) -> None:
    groups = cast(Any, unordered_batches(map(named, owners)))
    for owner, positions in groups.items():
        assert positions == [at for at, name in enumerate(owners) if name == owner]
    assert sum(map(len, groups.values())) == sum(owner is not None for owner in owners)


def test_replies_are_combined_with_the_client_s_indexes() -> None:
    result = BulkResult()
    result.add({"n": 2, "nModified": 1, "upserted": [{"index": 1, "_id": "x"}]}, [5, 7])
    result.add({"n": 1, "nModified": 1, "writeErrors": [{"index": 0, "code": 1}]}, [2])
    result.add_error(CommandError(61, "no key"), 1)
    assert result.reply() == {
        "n": 3,
        "nModified": 2,
        "upserted": [{"index": 7, "_id": "x"}],
        "writeErrors": [{"index": 1, "code": 61, "errmsg": "no key"}, {"index": 2, "code": 1}],
    }
