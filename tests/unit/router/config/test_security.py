from pathlib import Path
from typing import Any

import bson
import pytest

from router.config.settings import Settings, load_settings


def secret_file(folder: Path, content: str) -> str:
    path = folder / "secret"
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


def settings(**security: Any) -> Settings:
    return load_settings({"security": security})


def test_without_security_there_are_no_logins() -> None:
    found = load_settings({})
    assert not found.security.authorization
    assert found.security.logins() == (None, None)


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
