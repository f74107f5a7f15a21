"""Options of the whole test run."""

import os

import pytest

from tests.harness.clusters import DEFAULT_IMAGE, DOCKER_IMAGE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--docker",
        action="store_true",
        help="run cluster tests against MongoDB's servers in containers",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--docker"):
        os.environ.setdefault(DOCKER_IMAGE, DEFAULT_IMAGE)
