"""The router's process: its start, its memory and the lag of its loop."""

import asyncio
import gc
import platform
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from router import allocator
from router.allocator import collect_less_often, keep_freed_memory, keep_slack_small
from router.config.security import HIDDEN
from router.config.settings import load_settings
from router.counters.loads import BOUNDS, Histogram
from router.counters.process_counters import measure_lag
from router.limits.memory import Memory
from router.run import run_until_signalled
from tests.harness.until import until


async def test_freed_memory_is_given_back_while_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocator, "LOOK_SECONDS", 0)
    monkeypatch.setattr(allocator, "MOST_SLACK", 100)
    found = iter([1000, 1000, 1500, 1100, 1101, 900, 1000, 1001, 1001])
    held = iter([0, 0, 450, 0, 0, 0, 0, 0])
    given: list[int] = []
    whole = Memory(1)

    def resident() -> int:
        whole.held = next(held, 0)
        return next(found)

    monkeypatch.setattr(allocator, "resident_bytes", resident)
    monkeypatch.setattr(allocator, "give_back_freed_memory", lambda: given.append(whole.held))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.create_task(keep_slack_small(whole))
    assert len(given) == 3


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
    code = "from router.allocator import keep_freed_memory as k; print(k(), k(1 << 29))"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(platform.libc_ver()[0] == "glibc")] * 2


def test_without_mallopt_the_settings_are_skipped(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert keep_freed_memory() is False


async def test_the_options_are_logged_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERGEROUTER_SECURITY__PASSWORD", "swordfish")
    settings = load_settings({"security": {"user": "router"}, "net": {"port": 5}})
    with capture_logs() as logged, pytest.raises(ValueError, match="configDB"):
        await run_until_signalled(settings)
    (line,) = (line for line in logged if line.get("id") == 21951)
    options = {"security": {"user": "router", "password": HIDDEN}, "net": {"port": 5}}
    assert line["options"] == options


async def test_a_blocked_loop_is_measured() -> None:
    lag = Histogram()
    measuring = asyncio.create_task(measure_lag(lag))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 (the loop has to stand still)
    await until(lambda: sum(lag.counts) > 0)
    measuring.cancel()
    assert lag.total >= 0.04
    late = [count for bound, count in zip(BOUNDS, lag.counts, strict=False) if bound <= 0.025]
    assert sum(late) < sum(lag.counts)
