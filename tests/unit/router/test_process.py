"""The start of the router's process."""

import pytest
from structlog.testing import capture_logs

from router.config.security import HIDDEN
from router.config.settings import load_settings
from router.process import run_until_signalled


async def test_the_options_are_logged_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEROUTER_SECURITY__PASSWORD", "swordfish")
    settings = load_settings({"security": {"user": "router"}, "net": {"port": 5}})
    with capture_logs() as logged, pytest.raises(ValueError, match="configDB"):
        await run_until_signalled(settings)
    (line,) = (line for line in logged if line.get("id") == 21951)
    options = {"security": {"user": "router", "password": HIDDEN}, "net": {"port": 5}}
    assert line["options"] == options
