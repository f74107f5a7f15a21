"""The router accepts the example configuration."""

from pathlib import Path

from router.config.settings import load_settings

EXAMPLE = Path(__file__).parents[4] / "deploy" / "mergerouter.yaml"


def test_the_example_is_valid() -> None:
    settings = load_settings({}, EXAMPLE)
    assert settings.sharding.config_db is not None
    assert settings.sharding.config_db.startswith("cfgRS/")
    assert (settings.net.port, settings.feed.port) == (27020, 27021)
