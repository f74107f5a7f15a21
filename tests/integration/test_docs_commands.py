"""Commands in the documentation that are marked as tested are run, on a cluster of the tests.

A comment before a block of commands says what each of them does: ``<!-- test: exits -->`` ends with
status 0, ``<!-- test: serves -->`` waits for connections, ``<!-- test: follows -->`` prints events,
``<!-- test: pipes -->`` prints the documents of events and is a line for a shell.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.certificates import Authority
from tests.harness.clusters import Client, TestCluster
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import write_key_file
from tests.harness.until import Deadline

ROOT = Path(__file__).parents[2]
_SECONDS = 120.0  # a busy machine starts Python and its packages slowly
_NETCAT = """
import socket, sys, threading
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    for line in sys.stdin.buffer:
        link.sendall(line)
threading.Thread(target=send, daemon=True).start()
while data := link.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""
_BLOCK = re.compile(r"<!-- test: (\w+) -->\n\n((?:    .*\n)+)")


class Documented(NamedTuple):
    page: str
    kind: str
    command: str


def documented() -> list[Documented]:
    commands = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for kind, block in _BLOCK.findall(page.read_text()):
            whole = re.sub(r"\\\n\s*", "", block)
            commands += [Documented(page.name, kind, line.strip()) for line in whole.splitlines()]
    return commands


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, cluster.mongos_uri, admin_port=0, feed=True) as started:
        yield started


@pytest.fixture
def places(cluster: TestCluster, router: RouterProcess, tmp_path: Path) -> dict[str, str]:
    """Return what the names and paths of the documentation are here.

    The working folder has a key file and certificates under the names of the documentation.
    """
    token, config = tmp_path / "token", tmp_path / "mergerouter.yaml"
    token.write_text("secret")
    write_key_file(tmp_path)
    Authority(tmp_path, "ca").issue("server")
    config.write_text(
        f"sharding: {{configDB: '{cluster.configdb}'}}\nnet: {{port: 0}}\n"
        f"upstream: '{cluster.mongos_uri}'\n"
    )
    return {
        r"(\.venv/bin/)?mergerouter(?= )": f"{sys.executable} -m router.cli",
        r"\btail (?!.*--uri )": f"tail --uri {router.uri} ",
        r"cfg(RS)?/[\w.:,]+": cluster.configdb,
        r"mongodb://mongos(\.example)?:27017": cluster.mongos_uri,
        r"127\.0\.0\.1:27020": f"127.0.0.1:{router.port}",
        r"127\.0\.0\.1 27021": f"127.0.0.1 {router.feed_port}",
        r"127\.0\.0\.1:27022": f"127.0.0.1:{router.admin_port}",
        r"/etc/mergerouter/token": str(token),
        r"(?<=--config )mergerouter\.yaml": str(config),
        r"(?<=port )27\d\d\d": "0",
    }


@pytest.mark.parametrize("case", documented(), ids=lambda case: f"{case.page}: {case.command}")
def test_a_documented_command_works(
    case: Documented, places: dict[str, str], router: RouterProcess, tmp_path: Path
) -> None:
    command = case.command
    for pattern, here in places.items():
        command = re.sub(pattern, lambda _found, here=here: here, command)
    arguments = shlex.split(command, comments=True)
    if case.kind == "pipes":
        arguments = ["bash", "-c", command]
        for program in set(re.findall(r"(?:^|\| )(\w+) ", command)) & {"jq", "nc"}:
            with_program(program, tmp_path)
    if case.kind == "serves" and "--port" not in arguments and "--config" not in arguments:
        arguments += ["--port", "0"]
    process = subprocess.Popen(
        arguments,
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        },
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        if case.kind == "exits":
            output, _ = process.communicate(timeout=_SECONDS)
            assert process.returncode == 0, output
            assert output
        elif case.kind == "pipes":
            until_printed(process, router, "written")
        else:
            if case.kind == "serves":
                until_ready(process)
            else:
                until_printed(process, router, "insert")
            process.send_signal(signal.SIGTERM)
            assert process.wait(_SECONDS) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def with_program(name: str, folder: Path) -> None:
    """Skip the test without jq; put a program like netcat into ``folder`` where there is none."""
    if shutil.which(name) is not None:
        return
    if name != "nc":
        pytest.skip(f"{name} is not installed")
    program = folder / "nc"
    program.write_text(f"#!{sys.executable}\n{_NETCAT}")
    program.chmod(0o700)


def until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Waiting for connections" in line:
            return
    raise AssertionError("".join(lines))


def until_printed(process: subprocess.Popen[str], router: RouterProcess, text: str) -> None:
    """Write until the command has printed ``text``: it may begin to watch at any time."""
    assert process.stdout is not None
    read_on, output = threading.Event(), process.stdout
    last = [""]

    def read() -> None:
        while text not in last[0] and (line := output.readline()):
            last[0] = line
        read_on.set()

    threading.Thread(target=read, daemon=True).start()
    deadline = Deadline()
    with Client(router.uri) as client:
        while not read_on.wait(0.02):
            client.shop.orders.insert_one({"written": True})
            deadline.check("an event to be printed")
    assert text in last[0], f"the command ended after {last[0]!r}"


def test_there_are_commands_to_test() -> None:
    assert {each.kind for each in documented()} == {"exits", "serves", "follows", "pipes"}
