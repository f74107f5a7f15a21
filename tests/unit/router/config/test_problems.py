"""Messages about invalid settings."""

from typing import Any

import pydantic
import pytest

from router.config.problems import describe_problems
from router.config.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"net": {"prt": 1}}, "net.prt is not a setting. Did you mean net.port?"),
        ({"net": {"bindip": "::1"}}, "net.bindip is not a setting. Did you mean net.bindIp?"),
        ({"upstraem": "x"}, "upstraem is not a setting. Did you mean upstream?"),
        (
            {"systemLog": {"colour": 1}},
            "systemLog.colour is not a setting. "
            "Section systemLog has systemLog.quiet, systemLog.verbosity.",
        ),
        ({"zzz": 1}, "zzz is not a setting."),
        (
            {"net": {"port": 70000}},
            "net.port: input should be less than or equal to 65535, but is 70000",
        ),
        (
            {"setParameter": {"maxCursor": 1}},
            "Unknown --setParameter 'maxCursor'. Did you mean maxCursors?",
        ),
    ],
)
def test_a_message_names_the_setting_the_fault_and_the_remedy(
    flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        load_settings(flags)
    assert describe_problems(caught.value, Settings) == message
