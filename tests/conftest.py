"""Options and hooks of the whole test run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.spark.quick_session import share_classes

_BY_FILE = {"integration", "recordings", "faults", "differential", "examples"}
"""Folders in which pytest-xdist runs each file's tests in one process."""

# No deadline for examples, since a busy machine is slow; pytest-timeout bounds every test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
share_classes()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mongos-too",
        action="store_true",
        help="compare drivers' tests on the router with those on a real mongos",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One process runs all tests of such a file, so that module-scoped clusters start only once.
    assert {each.name for each in Path(__file__).parent.iterdir()} >= _BY_FILE
    for item in items:
        if item.path.parent.name in _BY_FILE and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(autouse=True)
def _plain_logging() -> Iterator[None]:
    """Log as by default, but with plain tracebacks: rich ones take a fifth of a second each.

    Afterwards, undo what a test configured for the whole process, such as a simulation's log level.
    """
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
    yield
    structlog.reset_defaults()
