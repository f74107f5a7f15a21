"""For how long a shared stream is avoided that has failed."""

import re

from router.stream.failed_streams import FIRST_PAUSE, LONGEST_PAUSE, MOST_FAILED, FailedStreams
from shard_client.errors import RESUMABLE_LABEL, CommandError

TOO_LARGE = CommandError(10334, "BSONObj size is invalid.")


def pause_after(failed: FailedStreams, now: float) -> int:
    """Return for how many seconds more clients are told that the stream is avoided."""
    (seconds,) = re.findall(r"not read for (\d+) s", failed.why_avoided(b"key", now))
    return int(seconds)


def test_the_pause_doubles_up_to_a_bound() -> None:
    failed = FailedStreams()
    now, pauses = 100.0, []
    for _ in range(12):
        failed.add(b"key", TOO_LARGE, entered=now - 0.5, now=now)
        pauses.append(pause_after(failed, now))
        now += pauses[-1] + 1.0
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]
    assert pauses == sorted(pauses)


def test_an_outage_does_not_double_the_pause() -> None:
    failed, outage = FailedStreams(), CommandError(133, "no answer", labels=(RESUMABLE_LABEL,))
    for number in range(20):
        failed.add(b"key", outage, entered=20.0 * number, now=20.0 * number + 10.0)
        assert pause_after(failed, 20.0 * number + 10.0) == FIRST_PAUSE


def test_the_streams_that_failed_last_are_remembered() -> None:
    failed = FailedStreams()
    for number in range(MOST_FAILED + 1):
        failed.add(b"%d" % number, TOO_LARGE, entered=1.0, now=2.0)
        failed.add(b"0", TOO_LARGE, entered=1.0, now=2.0)
    assert failed.why_avoided(b"0", 3.0)
    assert not failed.why_avoided(b"1", 3.0)
    assert all(failed.why_avoided(b"%d" % number, 3.0) for number in range(2, MOST_FAILED + 1))
