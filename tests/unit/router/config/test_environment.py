"""Settings from environment variables."""

import pytest

from router.config.command_line import SETTINGS
from router.config.settings import load_settings, variable


@pytest.fixture(autouse=True)
def _configdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEROUTER_SHARDING__CONFIGDB", "cfg/a:1")


@pytest.mark.parametrize(
    ("variable", "value", "given"),
    [
        ("MERGEROUTER_NET__BINDIP", "::1", {"net": {"bindIp": "::1"}}),
        ("mergerouter_net__port", "7", {"net": {"port": 7}}),
        ("MERGEROUTER_SYSTEMLOG__VERBOSITY", "2", {"systemLog": {"verbosity": 2}}),
        ("MERGEROUTER_NET__ADMIN__BINDIP", "::1", {"net": {"admin": {"bindIp": "::1"}}}),
        ("MERGEROUTER_SETPARAMETER", "{maxCursors: 7}", {"setParameter": {"maxCursors": 7}}),
        ("MERGEROUTER_SETPARAMETER__MAXCURSORS", "7", {"setParameter": {"maxCursors": "7"}}),
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


@pytest.mark.parametrize(
    "variable", ["SYSTEMLOG", "SETPARAMETER", "MERGEROUTER_PORT_27020_TCP", "MERGEROUTER_MONGO_BIN"]
)
def test_variables_of_other_programs_are_left_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    assert load_settings({}).given() == {"sharding": {"configDB": "cfg/a:1"}}


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
