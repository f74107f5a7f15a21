"""Messages about invalid settings, those of TLS too."""

from pathlib import Path
from typing import Any

import pydantic
import pytest
import typer
from structlog.testing import capture_logs

from router.config.command_line import read_settings
from router.config.problems import describe_problems
from router.config.settings import Settings, load_settings
from router.tls.certificates import Certificates
from tests.harness.certificates import Authority


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
        ({"net": {"port": 70000}}, "net.port must be less than or equal to 65535, not 70000"),
        (
            {"workers": 2, "setParameter": {"enableTestCommands": True}},
            "setParameter.enableTestCommands requires workers: 1, since a fail point acts in one "
            "process",
        ),
        ({"workers": "two"}, "workers must be a valid integer, not 'two'"),
        ({"net": {"port": float("nan")}}, "net.port must be a finite number, not nan"),
        (
            {"net": {"maxIncomingConnectionsOverride": "10.0.0.0/8"}},
            "net.maxIncomingConnectionsOverride must be a valid list, not '10.0.0.0/8'",
        ),
        ({"net": {"admin": {"tokenFile": 7}}}, "net.admin.tokenFile: input is not a valid path…"),
        ({"sharding": {"configDB": 7}}, "sharding.configDB must be a valid string, not 7"),
        (
            {"sharding": "cfg/a:1"},
            "sharding must be a section with sharding.configDB, not 'cfg/a:1'",
        ),
        (
            {"sharding": {"configDB": "localhost:1"}},
            "sharding.configDB: must be setName/host:port[,host:port], not 'localhost:1'",
        ),
        (
            {"setParameter": {"maxCursors": 0}},
            "setParameter.maxCursors must be greater than or equal to 1, not 0",
        ),
        ({"upstream": "http://x"}, "upstream: must be mongodb://host:port[,host:port], not…"),
        ({"upstream": "mongodb://a:x"}, "upstream: an address must be host:port or [ipv6]:port,…"),
        ({"upstream": "mongodb://u:s3cret@a:1/"}, "upstream: credentials, databases and options…"),
        ({"upstream": "mongodb+srv://u:s3cret@a"}, "upstream: credentials, databases and options…"),
        ({"security": {"user": "router"}}, "security: security.user requires a password: set …"),
        ({"security": {"password": "s3cret"}}, "security: security.user is missing: a password…"),
        (
            {"security": {"user": "router", "password": "s3cret", "passwordFile": "f"}},
            "security: security.user requires a password: set either security.passwordFile or…",
        ),
        (
            {"security": {"user": "router", "password": ["s3cret"]}},
            "security.password must be a valid string…",
        ),
        (
            {"net": {"admin": {"tlsMode": "requireTLS"}}},
            "net: admin.tlsMode requireTLS requires the certificate in net.tls: set tls.mode to…",
        ),
    ],
)
def test_a_message_names_the_setting_the_fault_and_the_remedy(
    flags: dict[str, Any], message: str
) -> None:
    check(flags, message)


def check(flags: dict[str, Any], message: str) -> None:
    """Require a message, or one that begins so where ``message`` ends with "…"."""
    with pytest.raises(pydantic.ValidationError) as caught:
        load_settings(flags)
    described = describe_problems(caught.value, Settings)
    beginning = message.removesuffix("…")
    assert described.startswith(beginning) if beginning != message else described == message
    assert "s3cret" not in described


ALLOWED = {"mode": "allowTLS", "certificateKeyFile": "x"}


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({"mode": "requireTLS"}, ": mode requireTLS requires certificateKeyFile: a PEM file with…"),
        ({"CAFile": "x"}, ": CAFile needs TLS: set mode to requireTLS or preferTLS…"),
        ({"mode": "on"}, ".mode must be 'disabled', 'allowTLS', 'preferTLS' or 'requireTLS', not…"),
        (
            {"disabledProtocols": "TLS9"},
            ".disabledProtocols: TLS9 is not a protocol: name some of…",
        ),
        ({"disabledProtocols": "TLS1_2,TLS1_3"}, ".disabledProtocols: no protocol is left: TLS…"),
        (
            {"certificateFile": "x"},
            ".certificateFile is not a setting. Did you mean net.tls.certi…",
        ),
        ({**ALLOWED, "clusterCAFile": "x"}, ": clusterCAFile requires CAFile too…"),
        ({**ALLOWED, "CRLFile": "x"}, ": CRLFile requires CAFile: the authority that issued the…"),
        (
            {**ALLOWED, "allowConnectionsWithoutCertificates": True},
            ": allowConnectionsWithoutCertificates requires CAFile: without it, no client…",
        ),
        (
            {**ALLOWED, "CAFile": "x", "CRLFile": "x", "allowInvalidCertificates": True},
            ": CRLFile contradicts allowInvalidCertificates, which accepts revoked certificates…",
        ),
        (
            {**ALLOWED, "clusterPassword": "s3cret"},
            ": clusterFile is missing: there is a password…",
        ),
    ],
)
def test_contradictory_settings_of_tls_are_refused(tls: dict[str, Any], message: str) -> None:
    check({"net": {"tls": tls}}, "net.tls" + message)


@pytest.fixture(scope="module")
def server(authority: Authority) -> Path:
    return authority.issue("router")


def read(**tls: Any) -> Settings:
    return read_settings({"net": {"tls": tls}}, None)


def complaint(**tls: Any) -> str:
    with pytest.raises(typer.BadParameter) as raised:
        read(**tls)
    return str(raised.value)


def test_the_admin_port_uses_tls_as_the_drivers_port_does(server: Path) -> None:
    modes = [
        read_settings({"net": {"tls": tls, "admin": admin}}, None).net.admin_tls_mode
        for tls in ({}, {"mode": "requireTLS", "certificateKeyFile": server})
        for admin in ({}, {"tlsMode": "disabled"})
    ]
    assert modes == ["disabled", "disabled", "requireTLS", "disabled"]


def test_unusable_files_are_refused(authority: Authority, server: Path, tmp_path: Path) -> None:
    absent = complaint(mode="allowTLS", certificateKeyFile="/none")
    assert "cannot read /none: No such file" in absent
    expired = authority.issue("expired", days=-1)
    assert f"{expired} expired on" in complaint(mode="allowTLS", certificateKeyFile=expired)
    locked = authority.issue("locked", password="sesame")
    assert "is encrypted: set its password" in complaint(mode="allowTLS", certificateKeyFile=locked)
    wrong = {"certificateKeyFile": locked, "certificateKeyFilePassword": "open"}
    assert "does not open the key" in complaint(mode="allowTLS", **wrong)
    empty = tmp_path / "empty"
    empty.touch()
    assert "in PEM form" in complaint(mode="allowTLS", certificateKeyFile=empty)
    assert "in PEM form" in complaint(mode="allowTLS", certificateKeyFile=server, CAFile=empty)
    mixed = tmp_path / "mixed"
    certificate = server.read_text().partition("-----BEGIN PRIVATE")[0]
    key = authority.issue("other").read_text().partition("-----BEGIN PRIVATE")[2]
    mixed.write_text(f"{certificate}-----BEGIN PRIVATE{key}")
    assert "does not belong to its" in complaint(mode="allowTLS", certificateKeyFile=mixed)


def test_passwords_come_from_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = authority.issue("locked", password="sesame")
    monkeypatch.setenv("MERGEROUTER_NET__TLS__CERTIFICATEKEYFILEPASSWORD", "sesame")
    settings = read(mode="allowTLS", certificateKeyFile=locked)
    assert "sesame" not in str(settings.given())
    assert settings.given()["net"]["tls"]["certificateKeyFile"] == str(locked)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"allowInvalidCertificates": True}, "no certificate is checked"),
        ({"allowInvalidHostnames": True}, "can pose as another"),
        ({"CAFile": None}, "clients are not asked for certificates"),
    ],
)
def test_what_is_not_checked_is_logged(
    authority: Authority, server: Path, given: dict[str, Any], warned: str
) -> None:
    files = {"certificateKeyFile": server, "CAFile": authority.file}
    with capture_logs() as logged:
        Certificates(read(mode="requireTLS", **files).net.tls)
        assert [line for line in logged if line["log_level"] == "warning"] == []
        Certificates(read(mode="requireTLS", **{**files, **given}).net.tls)
    assert warned in str(logged)
