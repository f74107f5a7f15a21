"""The last minutes that the status page shows."""

from datetime import UTC, datetime, timedelta

from router.admin.page_values import History, Sample

START = datetime(2026, 1, 31, tzinfo=UTC)


def sample(seconds: float, lags: dict[str, float], events: int = 0) -> Sample:
    slowest = max(lags, key=lambda target: lags[target]) if lags else None
    return Sample(START + timedelta(seconds=seconds), lags, events, 2 * events, slowest)


def test_rates_are_of_the_time_between_samples() -> None:
    history = History()
    for seconds, events in ((0, 0), (5, 50), (15, 250), (20, 0)):  # a worker was restarted
        history.add(sample(seconds, {"s0": 1.0}, events))
    assert history.rates("received") == [10.0, 20.0, 0.0]
    assert history.rates("delivered") == [20.0, 40.0, 0.0]


def test_it_is_known_since_when_a_shard_is_the_slowest() -> None:
    history = History()
    for seconds, slow in ((0, "s0"), (5, "s1"), (10, "s1")):
        history.add(sample(seconds, {"s0": 1.0, "s1": 1.0, slow: 9.0}))
    now = START + timedelta(seconds=12)
    assert history.holds_since("s1", now) == 7.0
    assert history.holds_since("s0", now) == 0.0
    assert history.lags("s1") == (1.0, 9.0, 9.0)
    assert history.lags("s2") == (None, None, None)


def test_samples_are_bounded_and_no_page_adds_more_than_the_timer() -> None:
    history = History()
    for tenths in range(0, 20_000, 10):
        history.add(sample(tenths / 10, {"s0": 0.0}))
    assert len(history.lags("s0")) == 120
    history.add(sample(1999.5, {"s0": 7.0}))
    assert 7.0 not in history.lags("s0")
