"""The references of metrics, settings and commands are what the router has."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.admin import admin_port, get, watched_facade
from tests.reference import (
    COMMANDS_PAGE,
    METRICS,
    SETTINGS_PAGE,
    commands_reference,
    metrics_reference,
    settings_reference,
)


def test_the_reference_of_metrics_is_up_to_date() -> None:
    assert METRICS.read_text() == metrics_reference(), "run python -m tests.reference"


async def test_each_metric_has_figures() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        text = (await asyncio.to_thread(get, port, "/metrics")).text
    empty = {each.name for each in text_string_to_metric_families(text) if not each.samples}
    assert empty == {
        "mergerouter_client_lag_seconds",
        "mergerouter_history_left_seconds",
    }  # no client


def test_the_reference_of_settings_is_up_to_date() -> None:
    assert SETTINGS_PAGE.read_text() == settings_reference(), "run python -m tests.reference"


def test_the_reference_of_commands_is_up_to_date() -> None:
    assert COMMANDS_PAGE.read_text() == commands_reference(), "run python -m tests.reference"
