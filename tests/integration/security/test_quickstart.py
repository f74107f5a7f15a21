"""docs/quickstart.md, step by step, on a cluster with users; no file or log has a password."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.harness.clusters import Client, TestCluster
from tests.harness.ports import free_port
from tests.harness.server_settings import write_secret
from tests.harness.until import wait_for

PAGE = (Path(__file__).parents[3] / "docs" / "quickstart.md").read_text()
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(600)


def commands() -> Iterator[list[str]]:
    """The arguments of each marked command of mergerouter."""
    for block in re.findall(r"<!-- quickstart -->\n\n((?:    .*\n)+)", PAGE):
        for line in dedent(block).splitlines():
            if line.startswith("mergerouter "):
                yield shlex.split(line)[1:]


def configuration() -> str:
    return dedent(next(each for each in re.findall(r"(?:    .*\n)+", PAGE) if "sharding:" in each))


def test_the_quickstart(secured: TestCluster, key_file: Path, tmp_path: Path) -> None:
    check, serve, tail, run, status_of_job, status = commands()
    port, admin = free_port(), free_port()
    here = {
        "cfg/cfg1.example:27019": secured.configdb,
        "mongos.example:27017": secured.mongos,
        "27020": str(port),
        "27022": str(admin),
    }

    def placed(text: str) -> str:
        for name, place in here.items():
            text = text.replace(name, place)
        return text

    uri = f"mongodb://watcher:of-quickstart@127.0.0.1:{port}/"
    secrets = {"key": key_file.read_text(), "password": "of-router", "admin-token": "t"}
    for name, content in {**secrets, "watcher-uri": uri}.items():
        write_secret(tmp_path / name, content)
    (tmp_path / "router.yaml").write_text(placed(configuration()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MERGEROUTER_URI": uri}

    def start(arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "router.cli", *map(placed, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output_of(arguments: list[str]) -> str:
        process = start(arguments)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    started, told = list[subprocess.Popen[str]](), list[str]()
    with Client(secured.mongos_uri) as root:
        for user, password in (("mergerouter", "of-router"), ("watcher", "of-quickstart")):
            root.admin.command("createUser", user, pwd=password, roles=_roles(user))
        root.shop.orders.insert_one({"_id": "before"})
        try:
            assert "FAIL" not in output_of(check)
            router = start(serve)
            started.append(router)
            assert router.stdout is not None
            assert any("Waiting for connections" in line for line in router.stdout)
            threading.Thread(target=told.extend, args=(router.stdout,), daemon=True).start()
            assert str(admin) in placed(" ".join(status))
            assert output_of(status)

            tailing = start(tail)
            started.append(tailing)
            number = 0
            while tailing.poll() is None:
                root.shop.orders.insert_one({"_id": number})
                number += 1
                try:
                    tailing.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
            assert tailing.stdout is not None
            assert json.loads(tailing.stdout.read())["operationType"] == "insert"

            following = start(run)
            started.append(following)
            assert following.stdout is not None
            threading.Thread(target=told.extend, args=(following.stdout,), daemon=True).start()

            def committed() -> bool:
                assert following.poll() is None
                if not (tmp_path / "orders" / "job.json").exists():
                    return False
                return "committed   20" in output_of(status_of_job)

            wait_for(committed, "the job's first batch", 120)
            folder = str(tmp_path / "orders")
            wait_for(lambda: folder in output_of(status), "the job on the router's page", 60)
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(60)
            for user in ("mergerouter", "watcher"):
                root.admin.command("dropUser", user)
    kept = [each.read_bytes() for each in (tmp_path / "orders").rglob("*") if each.is_file()]
    assert kept
    for secret in ("of-quickstart", "of-router"):
        assert secret not in "".join(told)
        assert not any(secret.encode() in each for each in kept)


def _roles(user: str) -> list[str]:
    (found,) = re.findall(rf'user: "{user}", pwd: passwordPrompt\(\), roles: (\[.*?\])', PAGE)
    roles: list[str] = json.loads(found)
    return roles
