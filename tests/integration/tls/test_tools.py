"""``status`` and ``tail`` on a router that accepts only TLS connections."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pymongo

from tests.harness.certificates import Authority
from tests.harness.routers import RouterProcess

_TIMEOUT = 60.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "router.cli", *arguments],
        capture_output=True, text=True, timeout=_TIMEOUT, check=False,
    )  # fmt: skip


def test_status_checks_the_router_s_certificate(
    router: RouterProcess, authority: Authority
) -> None:
    address = f"https://127.0.0.1:{router.admin_port}"
    shown = run("status", "--admin", address, "--tlsCAFile", str(authority.file))
    assert shown.returncode == 0, shown.stderr
    assert "ready" in shown.stdout.splitlines()[0]
    refused = run("status", "--admin", address)
    assert refused.returncode == 1
    assert "--tlsCAFile" in refused.stderr


def test_tail_reads_tls_and_login_from_a_connection_string_in_a_file(
    router: RouterProcess, uri: str, tmp_path: Path
) -> None:
    place, file = tmp_path / "place", tmp_path / "uri"
    file.write_text(uri + "\n")
    file.chmod(0o600)
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        with client.db.tail.watch() as stream:
            client.db.tail.insert_one({"_id": f"first-{router.port}"})
            place.write_text(json.dumps(next(stream)["_id"]))
        client.db.tail.insert_one({"_id": f"second-{router.port}"})
    shown = run("tail", "db.tail", "--uri-file", str(file), "--resume-file", str(place), "-n", "1")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["documentKey"] == {"_id": f"second-{router.port}"}
