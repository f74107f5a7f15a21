"""The places of clients that have left."""

from bson.timestamp import Timestamp

from router.cursors.departed_clients import DepartedClients
from shard_client.bson.resume_token import first_key

DAY = 24 * 60 * 60.0


def test_the_earliest_place_not_returned_counts() -> None:
    places = DepartedClients()
    assert places.earliest(0.0) is None
    places.left("a", "db.c", first_key(Timestamp(10, 1)), now=0.0)
    places.left("b", "db.c", first_key(Timestamp(20, 1)), now=0.0)
    places.left("a", "db.c", first_key(Timestamp(30, 1)), now=1.0)  # its other cursor
    assert places.earliest(1.0) == Timestamp(10, 1)
    places.returned("a", "db.c")
    assert places.earliest(1.0) == Timestamp(20, 1)


def test_a_location_is_forgotten_after_a_day() -> None:
    places = DepartedClients()
    places.left("a", "db.c", first_key(Timestamp(10, 1)), now=0.0)
    places.left("b", "db.c", first_key(Timestamp(20, 1)), now=DAY / 2)
    assert places.earliest(DAY) == Timestamp(20, 1)
    places.left("b", "db.c", first_key(Timestamp(50, 1)), now=2 * DAY)
    assert places.earliest(2 * DAY) == Timestamp(50, 1)


def test_a_thousand_locations_are_remembered() -> None:
    places = DepartedClients()
    for number in range(1001):
        places.left(f"10.0.0.{number}", "db.c", first_key(Timestamp(number + 1, 1)), now=0.0)
    assert places.earliest(0.0) == Timestamp(2, 1)
