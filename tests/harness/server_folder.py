"""A folder for the data of test servers; both are cleaned up even if the test run is killed."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "mergerouter-cluster-"
_LOCK = "owner.lock"
_ENOUGH_BYTES = 4 << 30
_CREATION_SECONDS = 60.0
"""Seconds; a younger folder without a locked file may be one that is still being created."""

# Waits for the end of its input, then kills all processes of the folder and removes it.
_GUARD = """
import os, shutil, signal, sys, time
folder = sys.argv[1]
sys.stdin.read()
for attempt in range(50):
    found = False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\\0")
        except OSError:
            continue
        prefix = folder.encode() + b"/"
        if int(pid) != os.getpid() and any(word.startswith(prefix) for word in words):
            found = True
            os.kill(int(pid), signal.SIGKILL)
    if not found:
        break
    time.sleep(0.1)
shutil.rmtree(folder, ignore_errors=True)
"""


class ServerFolder:
    """A new folder, in memory if there is room, with a guard process that outlives this one.

    A server belongs to the folder if one of its arguments is a path inside it. When this process
    ends for any reason, the guard kills the remaining servers and removes the folder. Folders
    whose guard was killed too are removed when the next folder is created.
    """

    def __init__(self) -> None:
        home = _home()
        _remove_abandoned(home)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        self._lock = (self.path / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # A separate session, so that an interrupt of the test run does not end the guard.
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def remove(self) -> None:
        """Remove the folder and end its guard; call it after the servers have ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        self._guard.communicate()


def _home() -> Path:
    """Return the parent of folders: TMPDIR, or memory if there is room for a cluster."""
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK):
        free = shutil.disk_usage(_MEMORY).free
        return _MEMORY if free >= _ENOUGH_BYTES else Path(tempfile.gettempdir())
    return Path(tempfile.gettempdir())


def _remove_abandoned(home: Path) -> None:
    """Remove the folders in ``home`` whose owner and guard have both been killed."""
    for folder in home.glob(_PREFIX + "*"):
        try:
            if time.time() - folder.stat().st_mtime < _CREATION_SECONDS:
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # in use, gone, or another user's
        shutil.rmtree(folder, ignore_errors=True)
