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


async def test_former_names_of_parameters_are_logged_in_one_warning() -> None:
    given = {"idleShardNudge": "true", "promiseTimeoutMs": 500, "noopWriteBurst": 5}
    settings = load_settings({"setParameter": given})
    with capture_logs() as logged, pytest.raises(ValueError, match="configDB"):
        await run_until_signalled(settings)
    (warning,) = (line for line in logged if line["log_level"] == "warning")
    assert warning["presentNames"] == {
        "idleShardNudge": "noopWrites",
        "promiseTimeoutMs": "watermarkTimeoutMs",
    }
