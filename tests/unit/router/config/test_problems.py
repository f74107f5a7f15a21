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
        (
            {"zzz": 1},
            "zzz is not a setting. Known are feed, net, replication, security, setParameter, "
            "sharding, systemLog, tracing, upstream, workers.",
        ),
        (
            {"net": {"port": 70000}},
            "net.port must be 65535 or less, not 70000",
        ),
        (
            {"setParameter": {"maxCursor": 1}},
            "maxCursor is not a parameter. Did you mean maxCursors?",
        ),
        (
            {"workers": 2, "setParameter": {"enableTestCommands": True}},
            "setParameter.enableTestCommands requires workers: 1, since a fail point acts in one "
            "process",
        ),
        ({"workers": "two"}, "workers must be a whole number, not 'two'"),
        ({"net": {"bindIpAll": "x"}}, "net.bindIpAll must be true or false, not 'x'"),
        ({"net": {"port": float("nan")}}, "net.port must be a finite number, not nan"),
        (
            {"net": {"maxIncomingConnectionsOverride": "10.0.0.0/8"}},
            "net.maxIncomingConnectionsOverride must be a list, not '10.0.0.0/8'",
        ),
        (
            {"net": {"admin": {"tokenFile": 7}}},
            "net.admin.tokenFile must be a path, not 7",
        ),
        ({"sharding": {"configDB": 7}}, "sharding.configDB must be a text, not 7"),
        (
            {"sharding": "cfg/a:1"},
            "sharding must be a section with sharding.configDB, not 'cfg/a:1'",
        ),
        (
            {"sharding": {"configDB": "localhost:1"}},
            "sharding.configDB: must be setName/host:port[,host:port], not 'localhost:1'",
        ),
        (
            {"setParameter": {"maxCursors": "x"}},
            "parameter maxCursors must be a whole number, not 'x'",
        ),
        ({"setParameter": {"maxCursors": 0}}, "parameter maxCursors must be 1 or more, not 0"),
        (
            {"setParameter": {"noopWritesPerSecond": 2000}},
            "parameter noopWritesPerSecond must be 1000 or less, not 2000",
        ),
    ],
)
def test_a_message_names_the_setting_the_fault_and_the_remedy(
    flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        load_settings(flags)
    assert describe_problems(caught.value, Settings) == message
