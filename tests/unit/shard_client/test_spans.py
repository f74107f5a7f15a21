"""Spans: their parents, what they say of failures, and nothing without an SDK."""

import asyncio

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shard_client import spans
from shard_client.backoff import Backoff
from shard_client.errors import CommandError
from shard_client.remote_cursor.outages import Outages

FAILURE = CommandError(237, "cursor 7 of alice was killed", code_name="CursorKilled")


def test_a_span_is_part_of_the_one_around_it(exported: InMemorySpanExporter) -> None:
    with spans.recorded("outer", {"n": 1}) as outer, spans.recorded("inner", {}):
        pass
    inner, finished = exported.get_finished_spans()
    assert inner.parent == outer.get_span_context()
    assert (finished.name, finished.parent, dict(finished.attributes)) == ("outer", None, {"n": 1})


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


async def test_a_task_apart_has_no_current_span(exported: InMemorySpanExporter) -> None:
    async def work() -> None:
        with spans.recorded("work", {}):
            pass

    with spans.recorded("start", {}):
        await asyncio.create_task(work(), context=spans.apart())
        await asyncio.create_task(work())
    apart, within, start = exported.get_finished_spans()
    assert apart.parent is None
    assert within.parent == start.get_span_context()


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


async def test_later_outages_stand_alone_and_may_end_with_the_cursor(
    exported: InMemorySpanExporter,
) -> None:
    with spans.recorded("open remotes", {}):
        cursor = Outages("shard1", Backoff(0.01, 1.0))
        with cursor.opening():
            pass
        cursor.failed(FAILURE)
        cursor.failed(CommandError(6, "gone", code_name="HostUnreachable"))
        cursor.closed()
        cursor.closed()
    (outage,) = (each for each in exported.get_finished_spans() if "reopen" in each.name)
    assert outage.attributes["mergerouter.cause"] == "CursorKilled"
    assert outage.attributes["error.type"] == "HostUnreachable"
