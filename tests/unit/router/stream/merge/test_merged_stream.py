"""A merged stream: its opening, its low watermark, its batches and its failures."""

import pytest

from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken, token_of
from tests.doubles.scripted_streams import batch, hwm
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import CONFIG, A, B, arrive, at, opened, times


def test_an_unexpected_exception_hides_no_earlier_error():
    stream = opened()
    stream.remote_failed(B, CommandError(286, "history lost"))
    stream.fail(ValueError("a defect"))
    with pytest.raises(CommandError, match="history lost"):
        stream.take(None)


def test_an_error_follows_ready_events_and_has_mongos_s_label():
    stream = opened()
    arrive(stream, A, 12, upto=50)
    arrive(stream, B, upto=20)
    arrive(stream, CONFIG, upto=50)
    stream.remote_failed(B, CommandError(91, "going down"))
    assert stream.ready
    assert times(stream.take(None).events) == [12]
    with pytest.raises(CommandError) as caught:
        stream.take(None)
    assert caught.value.message == "Error on remote shard h1:1 :: caused by :: going down"
    assert caught.value.code_name == "ShutdownInProgress"
    assert caught.value.labels == {"ResumableChangeStreamError"}
    assert stream.log_reader.first_batch().events == []
    watermark = stream.merger.remotes[B].watermark
    arrive(stream, B, upto=60)
    assert stream.merger.remotes[B].watermark == watermark


@pytest.mark.parametrize(
    ("remote", "broken", "labels"),
    [
        (A, batch([], hwm(5)), {RESUMABLE_LABEL}),
        (A, batch([], b""), set()),
        (A, CursorBatch(0, [], KeyedToken.of(hwm(50)), 0), set()),
        (CONFIG, batch([], token_of(at(20, 0, invalidate=True)[1]), invalidated=True), set()),
        (CONFIG, batch([event(data_of(20, 1), operationType="insert")], hwm(50)), set()),
    ],
)
def test_a_violation_ends_the_stream_and_only_errors_of_order_are_resumable(remote, broken, labels):
    stream = opened()
    stream.batch_arrived(remote, broken)
    assert stream.error is not None
    assert set(stream.error.labels) == labels
    with pytest.raises(CommandError, match="broke its rules"):
        stream.take(None)
