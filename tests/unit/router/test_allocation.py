import gc
import platform
import subprocess
import sys

import pytest

from router.memory import collect_less_often, keep_freed_memory


@pytest.fixture
def collector():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_the_collector_runs_less_often():
    collect_less_often(20_000)
    assert gc.get_threshold()[0] == 20_000
    assert gc.get_freeze_count() > 0


def test_malloc_accepts_the_settings():
    # In a separate process, since the settings cannot be undone.
    code = "from router.memory import keep_freed_memory as k; print(k(), k(1 << 29))"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    assert output.split() == [str(platform.libc_ver()[0] == "glibc")] * 2


def test_without_mallopt_the_settings_are_skipped(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert keep_freed_memory() is False
