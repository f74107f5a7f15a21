"""Container, compose, Kubernetes and systemd files: the router accepts the settings in them."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from router import cli
from router.config.settings import Settings
from router.tls.handshake import Handshakes
from shard_client.wire.tls import TlsContexts, TlsFiles
from tests.harness.admin import admin_port, watched_facade
from tests.harness.certificates import Authority

DEPLOY = Path(__file__).parents[3] / "deploy"


def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return parsed


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text()


def test_the_router_of_the_compose_file_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = compose()
    service = parsed["services"]["router"]
    token = DEPLOY / parsed["secrets"]["admin-token"]["file"]
    environment = {
        name: value.replace("/run/secrets/admin-token", str(token))
        for name, value in service["environment"].items()
    }
    served: list[Settings] = []

    async def run(given: Settings) -> None:
        served.append(given)

    monkeypatch.setattr("router.run.run_until_signalled", run)
    app = typer.Typer()
    app.command()(cli.serve)
    result = CliRunner(env=environment).invoke(app, service["command"][1:])
    assert result.exit_code == 0, result.output
    (settings,) = served
    assert settings.net.hosts == ["0.0.0.0"]
    assert settings.net.admin.hosts == ["0.0.0.0"]
    assert settings.net.admin.read_token() == "try-it-out"
    published = {int(port.rpartition(":")[2]) for port in service["ports"]}
    assert published == {settings.net.port, settings.net.admin.port}


def test_the_compose_file_refers_to_what_it_defines() -> None:
    parsed = compose()
    services = parsed["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        assert set(service.get("secrets", ())) <= set(parsed["secrets"]), name
        for config in service.get("configs", ()):
            assert config["source"] in parsed["configs"], name
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in parsed["volumes"], name
    for name, service in services.items():
        if service.get("command", [""])[0] == "mongod":  # which has its data in the volume
            folder = "/data/configdb" if "--configsvr" in service["command"] else "/data/db"
            assert [each.partition(":")[2] for each in service["volumes"]] == [folder], name
    for config in parsed["configs"].values():
        if "file" in config:
            assert (DEPLOY / config["file"]).is_file()
        else:
            assert yaml.safe_load(config["content"])
    assert (DEPLOY / services["router"]["build"]["context"] / "deploy" / "Dockerfile").is_file()


def test_each_address_of_the_compose_file_is_a_service_that_listens_there() -> None:
    ports = {"mongos": {"27017"}, "router": {"27022"}, "prometheus": {"9090"}}
    for name, service in compose()["services"].items():
        command = service.get("command", [""])
        if command[0] == "mongod":
            ports[name] = {command[command.index("--port") + 1]}
    text = (DEPLOY / "compose.yaml").read_text()
    named = re.findall(r"\b([a-z]+\d?):(\d{4,5})\b|initiate (\w+) (\d+)", text)
    addresses = {(host or set_, port or its_port) for host, port, set_, its_port in named}
    assert {host for host, _ in addresses} == ports.keys()
    assert [(host, port) for host, port in addresses if port not in ports[host]] == []


def pinned(name: str) -> dict[str, str]:
    """Return the entries of a list of pinned packages by name."""
    entries = re.split(r"(?m)^(?=\S)", (DEPLOY / name).read_text())
    return {each.partition("==")[0]: each for each in entries if each.strip()}


def test_image_and_unit_install_packages_by_their_hashes() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    packages = pinned("requirements.txt")
    wanted = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["otel"],
    ]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        version = re.match(rf"{name}==([^ ;]+)", packages[name])
        assert version is not None
        assert requirement.specifier.contains(version[1])
    building = pinned("build-requirements.txt")
    assert "hatchling" in building
    assert all("--hash=sha256:" in each for each in [*packages.values(), *building.values()])
    installs = [line for line in dockerfile().splitlines() if "pip install" in line]
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps --no-index" in each for each in installs)
    assert "--require-hashes" in (DEPLOY.parent / "docs" / "deployment.md").read_text()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_image_s_health_check_asks_with_and_without_tls(
    scheme: str, tmp_path: Path
) -> None:
    (line,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", dockerfile(), re.MULTILINE)
    _python, *arguments = json.loads(line)
    handshakes = None
    if scheme == "https":  # the certificate is not for this address, and the authority unknown
        contexts = TlsContexts(TlsFiles(Authority(tmp_path).issue("router", hosts=["r.example"])))
        handshakes = Handshakes(lambda: contexts.unasked, required=True)
    async with watched_facade() as made, admin_port(made, "secret", handshakes=handshakes) as port:
        environment = {**os.environ, "HEALTH_URL": f"{scheme}://127.0.0.1:{port}/healthz"}
        checked = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environment)
        assert await checked.wait() == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "mergerouter.service"
    text = (DEPLOY / "mergerouter.service").read_text()
    unit.write_text(text.replace("/opt/mergerouter/.venv/bin/mergerouter", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_systemd_starts_a_router_with_invalid_settings_once() -> None:
    unit = (DEPLOY / "mergerouter.service").read_text()
    [statuses] = re.findall("^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    app = typer.Typer()
    app.command()(cli.serve)
    invalid = CliRunner().invoke(app, ["--configdb", "no-set:27019"])
    assert str(invalid.exit_code) in statuses.split()
