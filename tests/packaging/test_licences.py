"""Users install packages with permissive licences only."""

import pytest

from tests.packaging.licences import EXCEPTIONS, dependencies, is_allowed, report


def test_every_package_has_an_allowed_licence() -> None:
    rows = report()
    assert {row["Name"].lower() for row in rows} >= {"aiohttp", "motor", "pyspark", "typer"}
    others = {row["Name"]: row["License"] for row in rows if not is_allowed(row["License"])}
    assert set(others) <= set(EXCEPTIONS), others


def test_dependencies_of_dependencies_are_included() -> None:
    assert {"aiosignal", "dnspython", "py4j"} <= set(dependencies())
    assert "pytest" not in dependencies()


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT OR GPL-3.0-only", True),
        ("Apache-2.0 AND MIT", True),
        ("Apache-2.0 AND (MIT OR GPL-2.0-only)", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("Apache Software License; MIT License", True),
        ("UNKNOWN", False),
    ],
)
def test_alternatives_and_sums_of_licences(licence: str, allowed: bool) -> None:
    assert is_allowed(licence) is allowed
