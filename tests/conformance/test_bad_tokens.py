"""Resume tokens that are refused for one of their fields (docs/protocol.md#resume-tokens).

The recorded cases have the others.
"""

import pytest

from tests.conformance.streams import opening, refused
from tests.harness.clusters import Client

_UUID = "5A1004" + "AB" * 16
_START = "826B0001550000003D"
# A missing version, a version that is a string, and likewise for each field.
TYPES = {
    "04": 50796, "3C610004": 50854, "2B0204": 51055, "2B023C610004": 51056, "2B022B0204": 51057,
    "2B022C010004": 50793, "2B022C01003C610004": 50855, "2B022C010027FD04": 50794,
    "2B022C01002904": 50872, "2B022C0100293C610004": 50870, "2B042C0100296E04": 6189500,
    "2B042C0100296E1404": 6189501, f"2B022C0100296E{_UUID}2904": 6189503,
    f"2B0229296E{_UUID}460004": 6189504,
}  # fmt: skip
"""What follows the time in a token, and the code of its error."""


@pytest.mark.rule(
    "Resume tokens",
    "50796, 50854, 51055-51057, 50793-50794, 50855, 50870, 50872, 6189500-6189505: a field "
    "of the wrong type or out of range",
)
@pytest.mark.parametrize("rest", TYPES)
def test_fields_of_wrong_types_are_refused(client: Client, rest: str) -> None:
    error = refused(client, "test", opening({"resumeAfter": {"_data": _START + rest}}, aggregate=1))
    assert error["code"] == TYPES[rest], error


@pytest.mark.rule("Resume tokens", "40646 and Overflow 15: oversized and truncated tokens")
@pytest.mark.parametrize(
    ("token", "code"), [("826B0001", 15), (f"{_START}2B022C0100296E{_UUID}46002904", 40646)]
)
def test_oversized_and_truncated_tokens_are_refused(client: Client, token: str, code: int) -> None:
    error = refused(client, "test", opening({"resumeAfter": {"_data": token}}, aggregate=1))
    assert error["code"] == code, error
