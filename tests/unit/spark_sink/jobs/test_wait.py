"""`mergerouter job wait`: what a job's tables lack of the events before a position."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from typer.testing import CliRunner

from shard_client.bson.resume_token import high_water_mark
from spark_sink.cli import job
from spark_sink.errors import OptionError
from spark_sink.events.positions import AtTime, key_of
from spark_sink.folders import Folder
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.report.waiting import position_to_reach, wait_until
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.queue import SnapshotQueue, SnapshotRequest
from spark_sink.snapshot.selections import MissingDocuments
from spark_sink.snapshot.signal import digest
from spark_sink.snapshot.unread import CollectionTokens
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.staged_changes import ChangeReport
from spark_sink.tables.table_state import Batch
from tests.doubles.scripted_job import Script, follow

NONE = "mongodb://none"
TIME = Timestamp(5, 1)
ABORTED = SnapshotRequest(
    "again-4-1", "incremental", MissingDocuments((), {"shop.items": ("1",)}), aborted=True
)
IN_SNAPSHOT = SnapshotQueue(requests=(SnapshotRequest("i", "initial", plan=SnapshotPlan(TIME)),))


@pytest.fixture
def script() -> Script:
    return Script(3)


@pytest.fixture
def folder(tmp_path: Path, script: Script) -> JobFolder:
    """A job whose tables have some batches of the script."""
    follow(str(tmp_path / "job"), tmp_path / "checkpoint", script, batches=3)
    return JobFolder(str(tmp_path / "job"))


def reached(folder: JobFolder, script: Script) -> int:
    return script.before(DeltaLog(folder.table("bronze")).state().batch.offset)


def lacking(folder: JobFolder, to: str | Timestamp) -> str:
    """Return what the message of a wait says is missing; empty if nothing is."""
    try:
        wait_until(folder, position_to_reach(to, NONE), 0)
    except TimeoutError as error:
        return str(error)
    return ""


def test_a_time_and_a_token_are_reached_with_all_their_events(
    folder: JobFolder, script: Script
) -> None:
    count = reached(folder, script)
    last, following = script.events[count - 1], script.events[count]
    for to in (script.time(count), last["_id"]["_data"], high_water_mark(script.time(count))):
        assert lacking(folder, to) == ""
    for to in (script.time(count + 1), following["_id"]["_data"]):
        told = lacking(folder, to)
        assert told.startswith("after 0 s bronze has reached ")
        assert "; messages has reached" in told
        assert "Check that the job in" in told
    # An event has the job's position, but others of its time may follow.
    assert key_of(position_to_reach(Timestamp(5, 1), NONE)) == key_of(AtTime(Timestamp(5, 2)))
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    assert position_to_reach(moment, NONE) == AtTime(Timestamp(int(moment.timestamp()), 1))
    with pytest.raises(OptionError, match=r"to: must be now, a time such as .* or a resume token"):
        position_to_reach("yesterday", NONE)


@pytest.mark.parametrize("lost", ["transactions", "current"])
def test_all_tables_must_have_the_events(folder: JobFolder, script: Script, lost: str) -> None:
    to = script.time(reached(folder, script))
    Path(folder.table(lost)).rename(f"{folder.address}-{lost}")
    assert f"{lost} {'lacks batch' if lost == 'transactions' else 'has no batch'}" in lacking(
        folder, to
    )


@pytest.mark.parametrize(
    ("offset", "unread", "told"),
    [
        ({"snapshots": IN_SNAPSHOT}, {}, "current has a snapshot in progress"),
        ({}, {("shop", "items"): "82"}, "current must read shop.items again"),
        (
            {"snapshots": SnapshotQueue(requests=(ABORTED,))},
            {},
            "current must read shop.items again",
        ),
        ({}, {}, ""),
    ],
)
def test_documents_that_are_still_to_be_read_are_waited_for(
    tmp_path: Path, offset: dict[str, Any], unread: CollectionTokens, told: str
) -> None:
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(tables=("current",)))
    assert "0 s current has no batch yet. " in lacking(folder, Timestamp(5, 1))
    batch = Batch("q", 0, Offset(AtTime(Timestamp(9, 1)), **offset).document)
    scope = TableScope(lambda *_: True, unread)
    CurrentTable(folder.table("current")).apply_staged(
        None, Upsert(ChangeReport(), batch, None, scope)
    )
    assert (
        (told in lacking(folder, Timestamp(5, 1))) if told else not lacking(folder, Timestamp(5, 1))
    )


def test_the_job_is_asked_to_move_on_until_it_has_the_time(
    folder: JobFolder, script: Script, tmp_path: Path
) -> None:
    asked: list[str] = []
    end, signals = script.time(len(script.events)), Folder(folder.signals)
    signals.write(".json", "a file of another program")

    def work() -> None:
        """Process each signal with some batches until the script's end.

        The files stay until the next batch, as those of a job of Spark.
        """
        while reached(folder, script) < len(script.events):
            for each in signals.listed(""):
                name = each.base_name.removesuffix(".json")
                if each.extension == "json" and name not in ("", *asked):
                    asked.append(name)
                    script.handled = tuple(map(digest, asked))
                    follow(folder.address, tmp_path / "checkpoint", script, batches=2)

    job_of_it = threading.Thread(target=work, daemon=True)
    job_of_it.start()
    wait_until(folder, position_to_reach(end, NONE), 60)
    job_of_it.join(60)
    assert len(asked) > 1
    assert [each.base_name for each in signals.listed("")] == [".json"]


def test_the_command_says_what_is_missing(folder: JobFolder, script: Script) -> None:
    def run(to: str) -> tuple[int, str]:
        given = ["wait", "--to", to, "--timeout", "1s", "--out", folder.address]
        found = CliRunner().invoke(job, given)
        return found.exit_code, found.output

    time = script.time(1)
    assert run(f"{time.time},{time.inc}") == (0, "all tables have all events up to then\n")
    code, told = run("2100-01-31T12:00:00Z")
    assert (code, told[:28]) == (3, "error: after 1 s bronze has ")
    assert run("tomorrow")[0] == 2
    assert Folder(folder.signals).listed("") == []
