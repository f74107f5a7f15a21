"""``check-config`` on a cluster with authentication: it logs in as the router would."""

from pathlib import Path

import pytest

from tests.harness.clusters import TestCluster
from tests.harness.routers import run_command
from tests.integration.security.clients import Servers


@pytest.mark.parametrize(
    ("password", "status", "said"),
    [
        ("swordfish", 0, "ok   login on the upstream as router"),
        ("wrong", 1, "FAIL login on the upstream as router"),
    ],
)
def test_the_login_on_the_upstream_is_tried(
    secured: TestCluster,
    servers: Servers,
    key_file: Path,
    tmp_path: Path,
    password: str,
    status: int,
    said: str,
) -> None:
    secret = tmp_path / "password"
    secret.write_text(password)
    secret.chmod(0o600)
    config = tmp_path / "router.yaml"
    config.write_text(
        f"sharding: {{configDB: '{secured.configdb}'}}\nnet: {{port: 0}}\n"
        f"upstream: mongodb://{secured.mongos}\n"
        f"security: {{keyFile: {key_file}, user: router, passwordFile: {secret}}}\n"
    )
    checked = run_command("check-config", "--config", config)
    assert checked.returncode == status, checked.stdout + checked.stderr
    assert said in checked.stdout
    assert "ok   shard shard0" in checked.stdout
    assert password not in checked.stdout.replace(str(secret), "")
