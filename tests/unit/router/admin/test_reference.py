"""The reference of the metrics is what the router exposes."""

from tests.reference import METRICS, metrics_reference


async def test_the_reference_is_up_to_date() -> None:
    assert METRICS.read_text() == await metrics_reference(), "run python -m tests.reference"
