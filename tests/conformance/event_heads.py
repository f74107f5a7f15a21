"""The fields with which every event begins, and streams on a database for the tests of events."""

from datetime import UTC, datetime, timedelta
from typing import Any

from bson import Timestamp
from pymongo.database import Database

from tests.conformance.streams import Event, Stream
from tests.harness.clusters import Client

Data = Database[dict[str, Any]]
EXPANDED = {"showExpandedEvents": True}
HEAD = ["_id", "operationType", "clusterTime", "wallTime"]
EXPANDED_HEAD = ["_id", "operationType", "clusterTime", "collectionUUID", "wallTime"]


def watched(
    client: Client, db: Data, options: dict[str, Any] | None = None, target: str | int = 1
) -> Stream:
    return Stream(client, db.name, target, options)


def only(events: list[Event], kind: str) -> Event:
    """Return the only event of this kind."""
    [event] = [event for event in events if event["operationType"] == kind]
    return event


def check_head(event: Event) -> None:
    assert isinstance(event["_id"]["_data"], str)
    assert isinstance(event["clusterTime"], Timestamp)
    happened = event["wallTime"].replace(tzinfo=UTC)
    assert abs(happened - datetime.now(UTC)) < timedelta(minutes=5)
