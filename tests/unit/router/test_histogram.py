"""Histograms of times."""

from router.status_sums import Histogram


def test_measurements_are_counted_by_their_bucket() -> None:
    histogram = Histogram((0.001, 0.01))
    for seconds in (0.0, 0.001, 0.0011, 3.0):
        histogram.record(seconds)
    assert histogram.to_document() == {
        "counts": {"0.001": 2, "0.01": 1, "+Inf": 1},
        "total": 3.0021,
    }
