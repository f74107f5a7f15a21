"""Splitting bulk writes by shard and combining the replies."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from embedded.mongos.bulk import BulkResult, batches
from shard_client.errors import CommandError


def named(name: str | None) -> Any:
    return cast(Any, name)


@given(st.lists(st.sampled_from(["a", "b", None])))
def test_batches_keep_order_with_one_shard_each(owners: list[str | None]) -> None:
    found = list(batches(map(named, owners)))
    assert [at for _, positions in found for at in positions] == list(range(len(owners)))
    for owner, positions in found:
        assert all(owners[at] == owner for at in positions)
        assert owner is not None or len(positions) == 1


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
