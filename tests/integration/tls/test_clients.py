"""Drivers, ``status``, ``tail`` and ``check-config`` on a router that accepts only TLS."""

import json
from pathlib import Path
from typing import Any

from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, run_command
from tests.harness.server_settings import write_secret


def test_status_checks_the_router_s_certificate(
    router: RouterProcess, authority: Authority
) -> None:
    address = f"https://127.0.0.1:{router.admin_port}"
    shown = run_command("status", "--admin", address, "--tlsCAFile", str(authority.file))
    assert shown.returncode == 0, shown.stderr
    assert "ready" in shown.stdout.splitlines()[0]
    refused = run_command("status", "--admin", address)
    assert refused.returncode == 1
    assert "--tlsCAFile" in refused.stderr


def test_tail_reads_tls_and_login_from_a_connection_string_in_a_file(
    router: RouterProcess, uri: str, tmp_path: Path
) -> None:
    place, file = tmp_path / "place", write_secret(tmp_path / "uri", uri + "\n")
    with Client(uri) as client:
        with client.db.tail.watch() as stream:
            client.db.tail.insert_one({"_id": f"first-{router.port}"})
            place.write_text(json.dumps(next(stream)["_id"]))
        client.db.tail.insert_one({"_id": f"second-{router.port}"})
    shown = run_command(
        "tail", "db.tail", "--uri-file", str(file), "--resume-file", str(place), "-n", "1"
    )
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["documentKey"] == {"_id": f"second-{router.port}"}


def test_pymongo_reads_and_writes_over_tls(uri: str, router: Any) -> None:
    with Client(uri) as client:
        collection = client.db[f"pymongo{router.port}"]
        collection.insert_one({"_id": "before"})
        with collection.watch(max_await_time_ms=1000) as stream:
            stream.try_next()
            collection.insert_one({"_id": "written"})
            with client.start_session() as session, session.start_transaction():
                collection.insert_one({"_id": "first"}, session=session)
                collection.insert_one({"_id": "second"}, session=session)
            seen = [stream.next()["documentKey"]["_id"] for _ in range(3)]
        assert seen == ["written", "first", "second"]
        large = "x" * 10_000_000
        with collection.watch() as stream:
            collection.insert_one({"_id": "large", "value": large})
            assert stream.next()["fullDocument"]["value"] == large


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
