"""Resume tokens that are refused for one of their fields (docs/protocol.md#resume-tokens).

The recorded cases have the others.
"""

from typing import Any

import pytest

from tests.conformance.streams import opening, refused
from tests.harness.clusters import Client

rule = pytest.mark.rule
_UUID = "5A1004" + "AB" * 16
_TIME = "826B0001550000003D"
TYPES = (
    "50796, 50854, 51055-51057, 50793-50794, 50855, 50870, 50872, 6189500-6189505: "
    "a field of the wrong type or out of range"
)
OVERSIZED = "40646 and Overflow 15: oversized and truncated tokens"


def token(rest: str, **more: Any) -> dict[str, Any]:
    return {"resumeAfter": {"_data": _TIME + rest, **more}}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        # A missing version, a version that is a string, and likewise for each field.
        pytest.param(
            {"resumeAfter": {"_data": _TIME + "04"}}, 50796, marks=rule("Resume tokens", TYPES)
        ),
        pytest.param(token("3C610004"), 50854, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B0204"), 51055, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B023C610004"), 51056, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022B0204"), 51057, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C010004"), 50793, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C01003C610004"), 50855, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C010027FD04"), 50794, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C01002904"), 50872, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B022C0100293C610004"), 50870, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B042C0100296E04"), 6189500, marks=rule("Resume tokens", TYPES)),
        pytest.param(token("2B042C0100296E1404"), 6189501, marks=rule("Resume tokens", TYPES)),
        pytest.param(
            token("2B022C0100296E" + _UUID + "2904"), 6189503, marks=rule("Resume tokens", TYPES)
        ),
        pytest.param(
            token("2B0229296E" + _UUID + "460004"), 6189504, marks=rule("Resume tokens", TYPES)
        ),
        pytest.param(
            {"resumeAfter": {"_data": "826B0001"}}, 15, marks=rule("Resume tokens", OVERSIZED)
        ),
        pytest.param(
            token("2B022C0100296E" + _UUID + "46002904"),
            40646,
            marks=rule("Resume tokens", OVERSIZED),
        ),
    ],
)
def test_bad_tokens_are_refused(client: Client, options: dict[str, Any], code: int) -> None:
    error = refused(client, "test", opening(options, aggregate=1))
    assert error["code"] == code, error
