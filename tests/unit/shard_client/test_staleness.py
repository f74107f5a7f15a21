"""maxStalenessSeconds, measured as in the drivers' specification."""

from collections.abc import Mapping

import pytest

from shard_client.replica_set.replica_set import Member, ReadPreference, fresh_enough
from shard_client.wire.connection import Address

P, A, B = ("p", 1), ("a", 1), ("b", 1)


def member(role: str, written: float | None, seen: float | None = 1000.0) -> Member:
    return Member(role, last_write=written, seen=seen)


@pytest.mark.parametrize(
    ("members", "fresh"),
    [
        ({P: member("primary", 500), A: member("secondary", 420)}, {P, A}),
        ({P: member("primary", 500), A: member("secondary", 419)}, {P}),
        # The hellos have different times; a write's age counts at the time of the member's hello.
        ({P: member("primary", 500), A: member("secondary", 417, 997)}, {P, A}),
        ({P: member("primary", 500, 1010), A: member("secondary", 410)}, {P, A}),
        # Without a primary, staleness is measured against the newest secondary.
        ({A: member("secondary", 500), B: member("secondary", 420)}, {A, B}),
        ({A: member("secondary", 500), B: member("secondary", 419)}, {A}),
        # A member whose last write is unknown counts as fresh.
        ({P: member("primary", 500), A: member("secondary", None, None)}, {P, A}),
        ({P: Member("primary"), A: member("secondary", 500), B: member("secondary", 1)}, {P, A}),
        ({}, set()),
    ],
)
def test_only_members_within_the_limit_are_fresh(
    members: Mapping[Address, Member], fresh: set[Address]
):
    assert fresh_enough(members, 90.0).keys() == fresh


@pytest.mark.parametrize("mode", ["secondary", "secondaryPreferred", "nearest"])
def test_a_stale_member_is_not_chosen(mode: str):
    document = {"mode": mode, "maxStalenessSeconds": 90}
    members = {
        P: member("primary", 5000),
        A: member("secondary", 1000),
        B: member("secondary", 4990),
    }
    chosen = {ReadPreference.of(document).choose(members) for _ in range(100)}
    assert A not in chosen
    assert B in chosen
    unbounded = ReadPreference.of({"mode": mode})
    assert A in {unbounded.choose(members) for _ in range(200)}


def test_with_only_stale_secondaries_the_primary_or_none_is_chosen():
    members = {P: member("primary", 5000), A: member("secondary", 1000)}
    bound = {"maxStalenessSeconds": 90}
    assert ReadPreference.of({"mode": "secondary", **bound}).choose(members) is None
    assert ReadPreference.of({"mode": "secondaryPreferred", **bound}).choose(members) == P
