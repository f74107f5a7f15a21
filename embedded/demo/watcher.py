"""The demo's driver client: an ordinary `watch()` on the router."""

from bson import Timestamp

from embedded.demo.ledger import Change, Seen
from embedded.demo.load import COLLECTION, DATABASE, Client


async def watch(client: Client, start: Timestamp, seen: Seen) -> None:
    """Record every change of the demo's collection since ``start``, until cancelled."""
    orders = client[DATABASE][COLLECTION]
    async with await orders.watch(start_at_operation_time=start) as stream:
        async for event in stream:
            seen.add(event["_id"]["_data"], Change.of_event(event))
