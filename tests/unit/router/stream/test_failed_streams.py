"""Shared streams that have failed are not entered for a while, which doubles and is bounded."""

from router.stream.sharing import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_STREAMS,
    FailedStreams,
)
from shard_client.errors import RESUMABLE_LABEL, CommandError

TOO_LARGE = CommandError(10334, 'BSONObj size is invalid. First element: _id: { _data: "826B" }')


def pause_after(failed: FailedStreams, key: bytes, now: float) -> float:
    """Return for how many seconds more a stream is avoided."""
    low, high = 0.0, 2 * LONGEST_PAUSE
    while high - low > 0.01:
        middle = (low + high) / 2
        if failed.avoids(key, now + middle):
            low = middle
        else:
            high = middle
    return round(low, 1)


def test_a_stream_that_has_not_failed_is_not_avoided() -> None:
    failed = FailedStreams()
    failed.add(b"other", TOO_LARGE, entered=1.0, now=2.0)
    assert not failed.avoids(b"one", 2.0)
    assert failed.explain(b"one", 2.0) == ""


def test_the_pause_doubles_up_to_a_bound() -> None:
    failed = FailedStreams()
    now, pauses = 100.0, []
    for _ in range(12):
        failed.add(b"key", TOO_LARGE, entered=now - 0.5, now=now)
        pauses.append(pause_after(failed, b"key", now))
        now += pauses[-1] + 1.0
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]
    assert pauses == sorted(pauses)


def test_an_outage_does_not_double_the_pause() -> None:
    failed, outage = FailedStreams(), CommandError(133, "no answer", labels=(RESUMABLE_LABEL,))
    for number in range(20):
        failed.add(b"key", outage, entered=20.0 * number, now=20.0 * number + 10.0)
        assert pause_after(failed, b"key", 20.0 * number + 10.0) == FIRST_PAUSE


def test_all_readers_of_a_stream_report_one_failure() -> None:
    failed = FailedStreams()
    news = [failed.add(b"key", TOO_LARGE, entered=50.0, now=100.0 + late) for late in range(100)]
    assert news == [True] + [False] * 99
    assert pause_after(failed, b"key", 100.0) == FIRST_PAUSE


def test_after_a_long_time_without_failures_the_pause_is_reset() -> None:
    failed = FailedStreams()
    failed.add(b"key", TOO_LARGE, entered=1.0, now=2.0)
    failed.add(b"key", TOO_LARGE, entered=20.0, now=21.0)
    long_after = 21.0 + 2 * FIRST_PAUSE + LONGEST_PAUSE + 1.0
    failed.add(b"key", TOO_LARGE, entered=long_after, now=long_after)
    assert pause_after(failed, b"key", long_after) == FIRST_PAUSE


def test_explain_shows_the_error_and_its_time_without_the_message() -> None:
    failed = FailedStreams()
    failed.add(b"key", TOO_LARGE, entered=1.0, now=2.0)
    reason = failed.explain(b"key", 4.5)
    assert reason == "the shared stream failed and is not read for 8 s: BSONObjectTooLarge"
    assert failed.explain(b"key", 2.0 + FIRST_PAUSE) == ""


def test_the_streams_that_failed_last_are_remembered() -> None:
    failed = FailedStreams()
    for number in range(MOST_STREAMS + 1):
        failed.add(b"%d" % number, TOO_LARGE, entered=1.0, now=2.0)
        failed.add(b"0", TOO_LARGE, entered=1.0, now=2.0)
    assert failed.avoids(b"0", 3.0)
    assert not failed.avoids(b"1", 3.0)
    assert all(failed.avoids(b"%d" % number, 3.0) for number in range(2, MOST_STREAMS + 1))
