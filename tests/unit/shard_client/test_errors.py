"""Members' errors in replies and spans, the pauses after them, and the sizes of batches."""

from unittest import mock

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from router.commands.reply_bodies import without_state_change
from shard_client import spans
from shard_client.backoff import Backoff
from shard_client.errors import (
    NOT_PRIMARY_CODES,
    RESUMABLE_LABEL,
    CommandError,
    ErrorCode,
    NetworkError,
    blames_member,
    from_network,
    is_resumable,
)
from shard_client.remote_cursor.batch_size import BatchSize
from shard_client.wire.documents import LENIENT, decode


@pytest.mark.parametrize("code", sorted(NOT_PRIMARY_CODES))
def test_a_member_s_state_change_is_reported_as_host_unreachable(code: int) -> None:
    error = CommandError(code, "not master and node is recovering", labels=("Kept",))
    told = without_state_change(error).to_reply()
    assert (told["code"], told["codeName"]) == (6, "HostUnreachable")
    assert told["errmsg"] == "(NOT_PRIMARY) and (NODE_IS_RECOVERING)"
    assert told["errorLabels"] == ["Kept"]


def test_a_copy_with_other_labels_has_the_cause() -> None:
    cause = ValueError("planted")
    assert CommandError.unexpected(cause).with_change_stream_label().__cause__ is cause


def test_other_errors_are_unchanged() -> None:
    error = CommandError(286, "not master")
    assert without_state_change(error) is error


def test_an_error_message_that_quotes_no_utf_8_is_readable() -> None:
    reply = bson.encode({"ok": 0.0, "errmsg": "no number: 'a?'", "code": 241})
    error = CommandError.from_reply(decode(reply.replace(b"a?", b"a\xff"), LENIENT))
    assert (error.code, error.message) == (241, "no number: 'a\ufffd'")


@given(st.floats(min_value=0, max_value=1, exclude_max=True), st.integers(1, 40))
def test_pauses_grow_to_their_limit_and_are_never_zero(chance: float, tries: int):
    backoff = Backoff(0.01, 2.0)
    with mock.patch("random.random", return_value=chance):
        pauses = [backoff.next_pause() for _ in range(tries)]
        assert pauses == sorted(pauses)
        assert all(0.0025 <= pause <= 2.0 for pause in pauses)
        backoff.reset()
        assert backoff.next_pause() == pauses[0]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(100, 20_000)), min_size=1))
def test_batches_have_about_the_target_size(batches: list[tuple[int, int]]):
    batch_size = BatchSize(1_000_000)
    for events, each in batches:
        batch_size.record_batch(events, events * each)
        assert 1 <= batch_size.current <= 100_000
        # The estimate is never below the size of the latest events.
        assert batch_size.current * each <= 1_000_000 or batch_size.current == 1


def test_the_size_adapts_to_small_events_after_large_ones():
    batch_size = BatchSize(1_000_000)
    batch_size.record_batch(1, 10_000_000)
    assert batch_size.current == 1
    for _ in range(100):
        batch_size.record_batch(batch_size.current, batch_size.current * 500)
    assert batch_size.current > 1000


def test_errors_are_classified_as_resumable():
    resumable = (6, 43, 91, 133, 189, 237, 262, 10107, 11600, 11602, 13436)
    assert all(is_resumable(CommandError(code, "")) for code in resumable)
    assert is_resumable(CommandError(1, "", labels=[RESUMABLE_LABEL]))
    assert not any(is_resumable(CommandError(code, "")) for code in (1, 13, 40, 280, 286, 10334))


def test_a_failure_is_attributed_to_the_member_or_not():
    assert blames_member(CommandError(ErrorCode.NotWritablePrimary, ""))
    assert blames_member(NetworkError("cut"))
    assert blames_member(from_network(NetworkError("cut"), "h:1"))
    assert not blames_member(CommandError(ErrorCode.CursorNotFound, ""))


def test_a_failure_has_its_name_without_its_message(exported: InMemorySpanExporter) -> None:
    with pytest.raises(CommandError), spans.recorded("fails", {}):
        raise CommandError(237, "cursor 7 of alice was killed", code_name="CursorKilled")
    with pytest.raises(KeyError), spans.recorded("fails", {}):
        raise KeyError("alice")
    failed = exported.get_finished_spans()
    assert [each.attributes["error.type"] for each in failed] == ["CursorKilled", "KeyError"]
    for each in failed:
        assert not each.status.is_ok
        assert "alice" not in each.to_json()
