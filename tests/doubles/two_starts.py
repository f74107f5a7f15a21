"""Two starts of one job, each with a checkpoint of its own, that take turns by seed.

They pause at every step of their commits.
"""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_sink.errors import SourceError
from spark_sink.jobs.job_folder import JobRecord
from spark_sink.tables.delta_log import DeltaLog
from tests.doubles.scripted_job import (
    CURRENT_ALONE,
    RECORD,
    Script,
    ScriptedJob,
    check_tables,
    follow,
)


class Start(threading.Thread):
    """A start of the job, which runs until its next step with each turn.

    `ended` is empty if it has reached the script's end, or tells why it has ended before; None
    while it runs.
    """

    def __init__(
        self, out: str, checkpoint: Path, script: Script, seed: int, record: JobRecord
    ) -> None:
        super().__init__(daemon=True)
        self._follows = out, checkpoint, script, seed
        self._record = record
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.ended: str | None = None

    def turn(self) -> None:
        """Run until the next step, or the end."""
        if self.ended is None:
            self._go.release()
            assert self._paused.acquire(timeout=60)

    def step(self) -> None:
        """Wait for the next turn."""
        self._paused.release()
        self._go.acquire()

    def run(self) -> None:
        self._go.acquire()
        ended = "a defect"
        try:
            follow(*self._follows, self.step, record=self._record)
            ended = ""
        except SourceError as error:
            ended = str(error)
        except FileNotFoundError as error:
            removed = "/current/_changes/" in str(error)  # which `failures` tells as another start
            ended = "another start has removed staged changes" if removed else str(error)
        finally:
            self.ended = ended
            self._paused.release()


def pause_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the threads of starts pause before and after the steps of their commits."""

    def pausing(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def paused(*args: Any, **named: Any) -> Any:
            thread = threading.current_thread()
            if isinstance(thread, Start):
                thread.step()
            found = original(*args, **named)
            if isinstance(thread, Start):
                thread.step()
            return found

        monkeypatch.setattr(owner, name, paused)

    pausing(ScriptedJob, "written")
    for name in ("reload", "_write", "_create"):
        pausing(DeltaLog, name)


def take_turns(starts: list[Start], chance: random.Random) -> None:
    """Run the first start for a while, then others with it, until all have ended."""
    for each in starts:
        each.start()
    for _ in range(chance.randrange(chance.choice([8, 80]))):
        starts[0].turn()
    while left := [each for each in starts if each.ended is None]:
        chosen = chance.choice(left)
        for _ in range(chance.randrange(1, 60)):
            chosen.turn()


def check_two_starts(out: str, folder: Path, seed: int) -> None:
    """Run two starts, and a last one, which finds what they left; then check the tables.

    A start that finds no tables begins a query of its own.
    """
    chance, script = random.Random(seed), Script(seed)
    record = chance.choice([RECORD, CURRENT_ALONE])
    starts = [Start(out, folder / str(n), script, seed + n, record) for n in range(3)]
    take_turns(starts[:2], chance)
    take_turns(starts[2:], chance)
    assert starts[2].ended == "", [each.ended for each in starts]
    refused = [str(each.ended) for each in starts if each.ended]
    assert all("another start" in each for each in refused), refused
    check_tables(out, script, record)
