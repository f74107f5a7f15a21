"""``status`` and ``tail`` on a router that accepts only TLS connections."""

import json
from pathlib import Path

from tests.harness.certificates import Authority
from tests.harness.clusters import Client
from tests.harness.routers import RouterProcess, run_command


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
    place, file = tmp_path / "place", tmp_path / "uri"
    file.write_text(uri + "\n")
    file.chmod(0o600)
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
