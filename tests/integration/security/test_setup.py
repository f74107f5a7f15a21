"""The set-up in ten minutes of docs/security.md, step by step as it is written there."""

import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clusters import Client, TestCluster
from tests.harness.node import NodePrograms
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, run_command
from tests.integration.security.page import blocks, section

STEPS = "## Set up in ten minutes"


def test_the_set_up_in_ten_minutes(
    secured: TestCluster,
    key_file: Path,
    node: NodePrograms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_user, settings, connecting = blocks(STEPS)
    port = free_port()
    monkeypatch.setenv("MERGEROUTER_NET__PORT", str(port))
    here = {
        "/etc/mergerouter": str(tmp_path),
        "cfg/cfg1.example:27019,cfg2.example:27019": secured.configdb,
        "mongos.example:27017": secured.mongos,
        "router.example:27020": f"127.0.0.1:{port}",
    }

    def placed(text: str) -> str:
        for name, place in here.items():
            text = text.replace(name, place)
        return text

    # 1. The key file, 2. the user, 3. its password.
    shutil.copy(key_file, tmp_path / "key")
    prompt = "globalThis.passwordPrompt = () => 'swordfish'; "
    node.mongosh(secured.mongos_uri, f"{prompt}{create_user}; print(JSON.stringify(1))")
    (tmp_path / "password").write_text("swordfish\n")
    for name in ("key", "password"):
        (tmp_path / name).chmod(0o600)
    # 4. The configuration, tried and used.
    config = tmp_path / "router.yaml"
    config.write_text(placed(settings))
    commands = re.findall(r"`mergerouter ([\w-]+) --config router.yaml`", section(STEPS))
    assert sorted(commands) == ["check-config", "serve"]
    checked = run_command("check-config", "--config", config)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "ok   login on the upstream as mergerouter" in checked.stdout
    with (
        Client(secured.mongos_uri) as admin,
        RouterProcess(["--config", str(config)]),
        ExitStack() as clients,
    ):
        role = {"role": "read", "db": "db"}
        admin.admin.command("createUser", "alice", pwd="secret", roles=[role])
        # 5. A driver.
        names = {"MongoClient": lambda uri: clients.enter_context(Client(uri))}
        stream: Any = eval(placed(connecting), names)
        inserted = admin.db.orders.insert_one({}).inserted_id
        with stream:
            assert next(stream)["documentKey"] == {"_id": inserted}
        for user in ("alice", "mergerouter"):
            admin.admin.command("dropUser", user)
