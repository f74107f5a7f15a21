"""Spans: their parents, what they say of failures, and nothing without an SDK."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shard_client import spans
from shard_client.backoff import Backoff
from shard_client.errors import CommandError
from shard_client.remote_cursor.outages import Outages

FAILURE = CommandError(237, "cursor 7 of alice was killed", code_name="CursorKilled")


def test_a_failure_has_its_name_without_its_message(exported: InMemorySpanExporter) -> None:
    with pytest.raises(CommandError), spans.recorded("fails", {}):
        raise FAILURE
    with pytest.raises(KeyError), spans.recorded("fails", {}):
        raise KeyError("alice")
    failed = exported.get_finished_spans()
    assert [each.attributes["error.type"] for each in failed] == ["CursorKilled", "KeyError"]
    for each in failed:
        assert not each.status.is_ok
        assert "alice" not in each.to_json()


async def test_an_outage_while_a_stream_is_opened_is_part_of_its_opening(
    exported: InMemorySpanExporter,
) -> None:
    with spans.recorded("open remotes", {}) as opening:
        cursor = Outages("shard1", Backoff(0.01, 1.0))
    with pytest.raises(CommandError), cursor.opening():
        raise FAILURE
    cursor.failed(FAILURE)
    with cursor.opening() as second:
        cursor.connected(second, ("db1.example", 27018))
    cursor.recovered()
    by_name = {each.name: each for each in exported.get_finished_spans()}
    outage = by_name["reopen remote cursor"]
    assert outage.parent == opening.get_span_context()
    assert outage.status.is_unset
    assert outage.attributes["mergerouter.cause"] == "CursorKilled"
    last = by_name["open remote cursor"]
    assert last.parent == outage.context
    assert last.attributes["server.address"] == "db1.example"
