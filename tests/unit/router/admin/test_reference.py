"""The references of metrics, settings and commands are what the router has."""

from tests.reference import (
    COMMANDS_PAGE,
    METRICS,
    SETTINGS_PAGE,
    commands_reference,
    metrics_reference,
    settings_reference,
)


async def test_the_reference_of_metrics_is_up_to_date() -> None:
    assert METRICS.read_text() == await metrics_reference(), "run python -m tests.reference"


def test_the_reference_of_settings_is_up_to_date() -> None:
    assert SETTINGS_PAGE.read_text() == settings_reference(), "run python -m tests.reference"


def test_the_reference_of_commands_is_up_to_date() -> None:
    assert COMMANDS_PAGE.read_text() == commands_reference(), "run python -m tests.reference"
