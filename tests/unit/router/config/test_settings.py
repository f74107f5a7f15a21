"""Settings from flags, environment and file, named as in mongos."""

from pathlib import Path

import pytest

from router.config.parameters import PARAMETERS, parse_parameters, stream_limits
from router.config.settings import load_settings
from router.stream_settings import StreamSettings

CONFIGDB = {"sharding": {"configDB": "cfg/a:1,b:2"}}


def test_defaults_are_safe() -> None:
    settings = load_settings(CONFIGDB)
    assert settings.net.port == 27020
    assert settings.net.hosts == ["127.0.0.1"]
    assert settings.upstream is None
    assert settings.feed.port is None


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(
        "sharding:\n  configDB: cfg/a:1\nnet:\n  port: 1\n  bindIp: 127.0.0.2,::1\n"
        "net.maxIncomingConnections: 7\nsystemLog:\n  verbosity: 2\n"
    )
    monkeypatch.setenv("MERGEROUTER_NET__PORT", "2")
    assert load_settings({}, file).net.port == 2
    settings = load_settings({"net.port": 3, "net.bindIp": None}, file)
    assert settings.net.port == 3
    assert settings.net.hosts == ["127.0.0.2", "::1"]
    assert settings.net.max_incoming_connections == 7
    assert settings.system_log.verbosity == 2


def test_given_settings_are_shown_as_by_mongos() -> None:
    flags = {**CONFIGDB, "net.port": 5, "net.bindIp": None, "setParameter": {"maxCursors": "9"}}
    assert load_settings(flags).given() == {
        "net": {"port": 5},
        "setParameter": {"maxCursors": "9"},
        "sharding": {"configDB": "cfg/a:1,b:2"},
    }


def test_a_file_without_settings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold settings"):
        load_settings({}, file)


def test_parameters_set_limits_in_their_own_units() -> None:
    given = {
        "cursorTimeoutMillis": "1500",
        "localLogicalSessionTimeoutMinutes": 2,
        "noopWriteDelayMs": "7.5",
        "noopWrites": "false",
        "streamBufferBytes": "1000",
    }
    limits = stream_limits(parse_parameters(given))
    assert limits.cursor_timeout == 1.5
    assert limits.session_timeout == 120
    assert limits.noop_delay == 0.0075
    assert limits.noop is False
    assert limits.stream_buffer_bytes == 1000


def test_default_parameters_keep_the_limits() -> None:
    assert stream_limits(parse_parameters({})) == StreamSettings()


def test_every_parameter_accepts_its_own_default() -> None:
    for parameter in PARAMETERS.values():
        for given in (parameter.default, str(parameter.default)):
            parsed = parse_parameters({parameter.name: given})
            assert parsed[parameter.name] == parameter.default


def test_only_available_compressors_are_offered() -> None:
    flags = {"net": {"compression": {"compressors": "lz4, zlib"}}}
    assert load_settings(flags).net.compressors == ("zlib",)
    flags = {"net": {"compression": {"compressors": "disabled"}}}
    assert load_settings(flags).net.compressors == ()
