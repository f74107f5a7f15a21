"""Client metadata is bounded, and refused with a real mongos's messages."""

from typing import Any

import pytest

from router.commands.hello import check_client_metadata
from shard_client.errors import CommandError

DRIVER: dict[str, Any] = {"driver": {"name": "x", "version": "1"}, "os": {"type": "x"}}


@pytest.mark.parametrize(
    ("metadata", "code", "message"),
    [
        (5, 14, "The client metadata document must be a document"),
        ({}, 183, "Missing required sub-document 'driver'"),
        ({"driver": DRIVER["driver"]}, 183, "Missing required sub-document 'os'"),
        ({**DRIVER, "pad": "x" * 600}, 185, "less then or equal to 512bytes"),
        ({**DRIVER, "driver": 5}, 14, "'driver' field is required to be a BSON document"),
        ({**DRIVER, "driver": {"name": "x"}}, 183, "Missing required field 'driver.version'"),
        ({**DRIVER, "os": {"type": 5}}, 14, "The 'os.type' field must be a string"),
        ({**DRIVER, "application": 5}, 14, "'application' field is required to be a BSON document"),
        ({**DRIVER, "application": {"name": 5}}, 14, "The 'application.name' field must be"),
        ({**DRIVER, "application": {"name": "é" * 65}}, 184, "less then or equal to 128 bytes"),
    ],
)
def test_bad_metadata_is_refused(metadata: Any, code: int, message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        check_client_metadata(metadata)
    assert refused.value.code == code


def test_valid_metadata_is_accepted() -> None:
    for more in ({}, {"application": {"name": "é" * 64}}, {"other": 5}):
        assert check_client_metadata({**DRIVER, **more}) == {**DRIVER, **more}
