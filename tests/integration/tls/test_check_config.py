"""``mergerouter check-config`` on a cluster that accepts only TLS connections."""

from pathlib import Path

from tests.harness.certificates import Authority
from tests.harness.clusters import TestCluster
from tests.harness.ports import free_port
from tests.harness.routers import run_command


def check(cluster: TestCluster, key_file: Path, folder: Path, tls: str) -> tuple[int, str]:
    config = folder / "router.yaml"
    config.write_text(
        f"sharding: {{configDB: {cluster.configdb}}}\n"
        f"upstream: mongodb://{cluster.mongos}\n"
        f"net: {{port: {free_port()}, tls: {tls}}}\n"
        f"security: {{keyFile: {key_file}}}\n"
    )
    finished = run_command("check-config", "--config", config)
    return finished.returncode, finished.stdout


def test_all_connections_use_tls(
    cluster: TestCluster, authority: Authority, key_file: Path, tmp_path: Path
) -> None:
    certificate = authority.issue("checked", days=20)
    tls = f"{{mode: requireTLS, certificateKeyFile: {certificate}, CAFile: {authority.file}}}"
    status, output = check(cluster, key_file, tmp_path, tls)
    assert status == 0, output
    assert "ok   certificate: CN=checked,OU=servers,O=tests, valid for 19 more days" in output
    for subject in ("config server", "shard shard0", "shard shard1", "upstream"):
        assert f"ok   {subject}" in output


def test_check_config_reports_a_certificate_of_another_authority(
    cluster: TestCluster, authority: Authority, key_file: Path, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign")
    certificate = authority.issue("checked")
    tls = f"{{mode: requireTLS, certificateKeyFile: {certificate}, CAFile: {foreign.file}}}"
    status, output = check(cluster, key_file, tmp_path, tls)
    assert status == 1
    upstream = next(line for line in output.splitlines() if line.startswith("FAIL upstream"))
    assert "certificate verify failed" in upstream
    assert "FAIL config server" in output
