"""``net.tls``: settings that contradict each other, and unusable files."""

from pathlib import Path
from typing import Any

import pytest
import typer
from structlog.testing import capture_logs

from router.config.command_line import read_settings
from router.config.settings import Settings
from router.tls.certificates import Certificates
from tests.harness.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


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
    assert f"{expired} has expired on" in complaint(mode="allowTLS", certificateKeyFile=expired)
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
