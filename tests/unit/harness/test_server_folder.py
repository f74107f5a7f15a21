"""When its owner is killed, a folder of test servers is removed and its servers end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.server_folder import ServerFolder

_OWNER = """
import subprocess, sys
from tests.harness.server_folder import ServerFolder
folder = ServerFolder()
server = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)", str(folder.path / "server")],
    stdout=subprocess.DEVNULL,
)
print(folder.path, server.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_owner_leaves_no_servers_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    folder, server = owner.stdout.readline().split()
    assert Path(folder).is_dir()
    owner.send_signal(signal.SIGKILL)
    # The guard inherits this pipe and ends last.
    assert owner.stdout.read() == ""
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    assert not Path(folder).exists()
    assert not _runs(int(server))


def test_only_folders_without_owner_are_removed(tmp_path: Path) -> None:
    abandoned = tmp_path / "mergerouter-cluster-abandoned"
    abandoned.mkdir()
    (abandoned / "owner.lock").touch()
    first = ServerFolder(tmp_path, creation_seconds=0.0)
    second = ServerFolder(tmp_path, creation_seconds=0.0)
    assert not abandoned.exists()
    assert first.path.is_dir()
    second.remove()
    first.remove()
    assert [*tmp_path.iterdir()] == []


def _runs(pid: int) -> bool:
    """Return whether the process runs and is no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
