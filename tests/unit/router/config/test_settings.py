"""Settings from flags, environment and file, named as in mongos."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import bson
import pytest

from router.config import tracing
from router.config.command_line import SETTINGS
from router.config.settings import (
    Parameters,
    Settings,
    load_settings,
    settings_of_streams,
    variable,
)
from router.config.tracing import Tracing
from router.stream_settings import StreamSettings, settings_of_process


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "must hold settings"),
        ("sharding: x\nsharding.configDB: c/a:1", "sharding is a section"),
    ],
)
def test_a_file_without_settings_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_settings({}, file)


def test_parameters_set_limits_in_their_own_units() -> None:
    given = {
        "cursorTimeoutMillis": "1500",
        "localLogicalSessionTimeoutMinutes": 2,
        "noopWriteDelayMs": "7.5",
        "noopWrites": "false",
        "streamBufferBytes": "1000",
    }
    limits = settings_of_streams(Parameters(**given).model_dump())
    assert limits.cursor_timeout == 1.5
    assert limits.session_timeout == 120
    assert limits.noop_delay == 0.0075
    assert limits.noop_writes is False
    assert limits.stream_buffer_bytes == 1000


def test_default_parameters_keep_the_limits() -> None:
    assert settings_of_streams(Parameters().model_dump()) == StreamSettings()


def test_every_parameter_accepts_its_own_default() -> None:
    for name, field in Parameters.model_fields.items():
        for given in (field.default, str(field.default)):
            assert getattr(Parameters(**{name: given}), name) == field.default


def test_only_available_compressors_are_offered() -> None:
    flags = {"net": {"compression": {"compressors": "lz4, zlib"}}}
    assert load_settings(flags).net.compressors == ("zlib",)
    flags = {"net": {"compression": {"compressors": "disabled"}}}
    assert load_settings(flags).net.compressors == ()


@pytest.fixture
def configdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEROUTER_SHARDING__CONFIGDB", "cfg/a:1")


@pytest.mark.usefixtures("configdb")
@pytest.mark.parametrize(
    ("variable", "value", "given"),
    [
        ("MERGEROUTER_NET__BINDIP", "::1", {"net": {"bindIp": "::1"}}),
        ("mergerouter_net__port", "7", {"net": {"port": 7}}),
        ("MERGEROUTER_SYSTEMLOG__VERBOSITY", "2", {"systemLog": {"verbosity": 2}}),
        ("MERGEROUTER_NET__ADMIN__BINDIP", "::1", {"net": {"admin": {"bindIp": "::1"}}}),
        ("MERGEROUTER_SETPARAMETER", "{maxCursors: 7}", {"setParameter": {"maxCursors": 7}}),
        ("MERGEROUTER_SETPARAMETER__MAXCURSORS", "7", {"setParameter": {"maxCursors": 7}}),
        (
            "MERGEROUTER_FEED__WATCH",
            '{"database": "shop"}',
            {"feed": {"watch": {"database": "shop"}}},
        ),
    ],
)
def test_a_variable_sets_a_setting(
    variable: str, value: str, given: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    settings = load_settings({}).given()
    assert settings.pop("sharding") == {"configDB": "cfg/a:1"}
    assert settings == given


@pytest.mark.usefixtures("configdb")
@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("MERGEROUTER_NET__PROT", "PROT is not a setting. Did you mean MERGEROUTER_NET__PORT?"),
        ("MERGEROUTER_NTE__PORT", "PORT is not a setting. Did you mean MERGEROUTER_NET__PORT?"),
        ("MERGEROUTER_WORKER", "WORKER is not a setting. Did you mean MERGEROUTER_WORKERS?"),
        ("MERGEROUTER_ZZZ__ZZZ", "variable MERGEROUTER_ZZZ__ZZZ is not a setting."),
        ("MERGEROUTER_SETPARAMETER__MAXCURSOR", "Did you mean MERGEROUTER_SETPARAMETER__MAXCURSOR"),
        ("MERGEROUTER_SETPARAMETER", "MERGEROUTER_SETPARAMETER must be a map"),
        ("MERGEROUTER_NET__PORT", "a valid integer"),
    ],
)
def test_an_unknown_or_invalid_variable_is_an_error(
    variable: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        load_settings({})


@pytest.mark.usefixtures("configdb")
@pytest.mark.parametrize(
    "variable", ["SYSTEMLOG", "SETPARAMETER", "MERGEROUTER_PORT_27020_TCP", "MERGEROUTER_MONGO_BIN"]
)
def test_variables_of_other_programs_are_left_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    assert load_settings({}).given() == {"sharding": {"configDB": "cfg/a:1"}}


@pytest.mark.usefixtures("configdb")
def test_a_key_of_a_map_is_added_to_those_of_the_file_and_of_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MERGEROUTER_SETPARAMETER__MAXCURSORS", "7")
    monkeypatch.setenv("MERGEROUTER_SETPARAMETER__MAXSTREAMS", "8")
    settings = load_settings({"setParameter": {"maxCursors": 9}})
    assert settings.parameters["maxCursors"] == 9
    assert settings.parameters["maxStreams"] == 8


def test_every_setting_has_a_variable_of_its_own() -> None:
    assert len({variable(name) for name in SETTINGS}) == len(SETTINGS)


def secret_file(folder: Path, content: str) -> str:
    path = folder / "secret"
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


def settings(**security: Any) -> Settings:
    return load_settings({"security": security})


def test_a_key_file_sets_the_member_login(tmp_path: Path) -> None:
    found = settings(keyFile=secret_file(tmp_path, "a2V5a2V5\n"))
    assert found.security.authorization
    members, upstream = found.security.logins()
    assert members is not None
    assert (members.user, members.source, members.passwords) == ("__system", "local", ("a2V5a2V5",))
    assert upstream is None


def test_a_user_logs_in_everywhere(tmp_path: Path) -> None:
    found = settings(user="router", passwordFile=secret_file(tmp_path, " pass word \n"))
    members, upstream = found.security.logins()
    assert members == upstream
    assert members is not None
    assert (members.user, members.source) == ("router", "admin")
    assert members.password == " pass word "


def test_a_password_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEROUTER_SECURITY__PASSWORD", "s3cret")
    found = settings(user="router")
    members, _ = found.security.logins()
    assert members is not None
    assert members.password == "s3cret"
    shown = found.given()
    bson.encode(shown)
    assert shown["security"]["password"] == "<password>"
    assert "s3cret" not in repr(found) + str(shown)


@pytest.mark.parametrize("workers", [1, 2, 3, 255])
def test_the_workers_budgets_add_up_to_the_router_s(workers: int) -> None:
    whole = StreamSettings(total_buffer_bytes=1000, user_buffer_bytes=600, replies_bytes=500)
    part = settings_of_process(whole, workers)
    assert whole.total_buffer_bytes - workers < part.total_buffer_bytes * workers <= 1000
    assert 600 - workers < part.user_buffer_bytes * workers <= 600
    assert 500 - workers < part.replies_bytes * workers <= 500
    assert part.stream_buffer_bytes == whole.stream_buffer_bytes
    for bound in ("max_cursors", "max_cursors_per_client", "max_streams", "member_connections"):
        assert getattr(part, bound) * workers <= max(getattr(whole, bound), 4 * workers)
        assert getattr(part, bound) >= getattr(whole, bound) // workers
    if workers == 1:
        assert part == whole


def test_without_a_bound_for_users_each_has_four_fifths() -> None:
    whole = StreamSettings(total_buffer_bytes=1000)
    assert whole.user_buffer == 800
    part = settings_of_process(whole, 2)
    assert (part.user_buffer_bytes, part.user_buffer) == (0, 400)
    assert StreamSettings(total_buffer_bytes=1000, user_buffer_bytes=300).user_buffer == 300


EXAMPLE = Path(__file__).parents[4] / "deploy" / "mergerouter.yaml"


def test_the_example_is_valid() -> None:
    settings = load_settings({}, EXAMPLE)
    assert settings.sharding.config_db is not None
    assert settings.sharding.config_db.startswith("cfgRS/")
    assert (settings.net.port, settings.feed.port) == (27020, 27021)


ENDPOINT = "https://collector.example:4318/v1/traces"


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        *((each, "be a URL such as") for each in ("collector:4318", "ftp://a/", "http:///traces")),
        ("https://user:secret@collector.example/v1/traces", "headersFile"),
    ],
)
def test_an_endpoint_is_a_url_without_a_password(endpoint: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tracing(endpoint=endpoint)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    assert Tracing(endpoint=ENDPOINT).endpoint == ENDPOINT
    monkeypatch.setattr(tracing, "version", version)
    with pytest.raises(ValueError, match=r"-m pip install opentelemetry-sdk"):
        Tracing(endpoint=ENDPOINT)


def test_headers_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\nx-tenant:  orders \n")
    settings = Tracing.model_validate({"endpoint": ENDPOINT, "headersFile": file})
    with pytest.raises(ValueError, match="too open"):
        settings.read_headers()
    file.chmod(0o600)
    assert settings.read_headers() == {"Authorization": "Bearer a:b", "x-tenant": "orders"}
    file.write_text("Bearer secret\n")
    with pytest.raises(ValueError, match="lines of name: value") as failure:
        settings.read_headers()
    assert "secret" not in str(failure.value)
