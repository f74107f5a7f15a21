"""Spans: their parents, what they say of failures, and nothing without an SDK."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shard_client import spans
from shard_client.errors import CommandError

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
