"""A job in whose folder someone deletes or mixes files: nothing is lost unseen."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from spark_sink.cli import job as command
from spark_sink.errors import SourceError, StreamError
from spark_sink.jobs.checkpoint import Checkpoint
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.options.scope import Scope
from spark_sink.source.offsets import Offset
from spark_sink.tables import delta_log, table_version
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.verification.verify_job import verify_job
from tests.doubles.scripted_job import (
    BESIDE,
    RECORD,
    SIX,
    Script,
    check_tables,
    documents_in,
    follow,
    rows_in,
)
from tests.doubles.table_changes import RandomChanges, apply

LACKS, NO_STATE = "lacks batches that the job has written to it", "has lost its file"
LOST = "a file of the table current is lost: restore it, or remove the table"
UNREADABLE = "cannot be read or written"
SCRIPT = Script(5)


Attack = Callable[[Path, Path], None]
"""What is done to a table of a job that has stopped, and of which there is an older copy."""


def files(table: Path, _: Path) -> None:
    """Delete the files that a table has now."""
    for each in DeltaLog(str(table)).paths():
        (table / each).unlink()


def newest(pattern: str) -> Attack:
    """Delete the newest file of a table with such a path."""

    def delete(table: Path, _: Path) -> None:
        max(table.glob(pattern), key=lambda each: (each.stat().st_mtime_ns, each)).unlink()

    return delete


def first_commit(table: Path, _: Path) -> None:
    min((table / "_delta_log").glob("*.json")).unlink()


def folder(path: str) -> Attack:
    """Delete a folder of a table."""
    return lambda table, _: shutil.rmtree(table / path)


def mixed(table: Path, older: Path) -> None:
    """Copy an older table over the newer one, whose later commits stay."""
    shutil.copytree(older, table, dirs_exist_ok=True)


def older_log(table: Path, older: Path) -> None:
    """Copy an older table over the newer one, without the later commits."""
    shutil.rmtree(table / "_delta_log")
    mixed(table, older)


def replaced(table: Path, older: Path) -> None:
    """Let the older table take the place of the newer one."""
    shutil.rmtree(table)
    older.rename(table)


# What is done to the folder of a table, and how the next start ends; without an error the tables
# have everything.
ATTACKS: list[tuple[str, Attack, str]] = [
    ("current", files, LOST),
    *((name, newest("_delta_log/*.json"), LACKS) for name in SIX),
    *((name, first_commit, UNREADABLE) for name in ("current", "bronze")),
    ("current", newest("_mergerouter/*.json"), NO_STATE),
    ("bronze", folder("_mergerouter"), NO_STATE),
    ("current", folder("_changes"), ""),
    *((name, folder("_delta_log"), LACKS) for name in ("current", "messages")),
    *((name, folder("."), LACKS) for name in ("current", *BESIDE)),
    *((name, mixed, "") for name in ("current", "bronze", "quarantine")),
    *((name, older_log, LACKS) for name in ("current", "messages")),
    *((name, replaced, LACKS) for name in ("bronze", *BESIDE)),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, its checkpoint, and an older copy of the job."""
    made = tmp_path_factory.mktemp("made")
    follow(str(made / "job"), made / "checkpoint", SCRIPT, batches=2)
    shutil.copytree(made / "job", made / "older")
    follow(str(made / "job"), made / "checkpoint", SCRIPT, seed=1, batches=3)
    return made


@pytest.mark.parametrize(
    ("name", "attack", "refusal"),
    ATTACKS,
    ids=[f"{name}-{attack.__qualname__.split('.')[0]}" for name, attack, _ in ATTACKS],
)
def test_a_start_goes_on_with_all_events_or_names_what_is_lost(
    name: str, attack: Attack, refusal: str, job: Path, tmp_path: Path
) -> None:
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    out, table, checkpoint = str(tmp_path / "job"), tmp_path / "job" / name, tmp_path / "checkpoint"
    attack(table, tmp_path / "older" / name)
    if not refusal:
        follow(out, checkpoint, SCRIPT)
        check_tables(out, SCRIPT)
        return
    for start in (checkpoint, tmp_path / "another"):
        with pytest.raises((SourceError, FileNotFoundError)) as refused:
            follow(out, start, SCRIPT)
        assert refusal in cause_of(refused.value)
        if "newest" in attack.__qualname__:
            break  # the tables alone tell that the newest batch is repeated
    if refusal == LACKS:
        by_rebuild = "remove what is left of it and let job rebuild make it again"
        remedy = by_rebuild if name == "current" else "restore it from a backup"
        assert remedy in str(refused.value)
    if not table.exists():
        no_spark: Any = None
        folder = JobFolder(out, str(checkpoint))
        [outcome] = verify_job(no_spark, folder, "mongodb://none", [name]).values()
        assert outcome.failed
        assert "lacks batches" in outcome.remark


def test_all_tables_of_one_backup_go_on_without_the_newer_checkpoint(
    job: Path, tmp_path: Path
) -> None:
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    out, checkpoint = str(tmp_path / "older"), tmp_path / "checkpoint"
    told = rf"lacks batches .*\(if all tables are of one backup, remove {checkpoint}\)"
    with pytest.raises(SourceError, match=told):
        follow(out, checkpoint, SCRIPT)
    shutil.rmtree(checkpoint)
    follow(out, checkpoint, SCRIPT)
    check_tables(out, SCRIPT)


def test_before_a_batch_with_new_collections_only_checksums_are_compared(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    folder = JobFolder(str(tmp_path / "job"), str(tmp_path / "checkpoint"))
    last = folder.checkpoint.last_committed()
    assert last is not None
    old = SimpleNamespace(number=last.number, end=replace(last.end, scope=Scope("elsewhere")))
    monkeypatch.setattr(Checkpoint, "last_committed", lambda _: old)
    no_spark: Any = None
    found = verify_job(no_spark, folder, "mongodb://none")
    why = "no batch is committed yet with the collections of the last start"
    assert {name: outcome.remark.removesuffix(why) for name, outcome in found.items()} == {
        **dict.fromkeys(SIX, ""),
        **dict.fromkeys(("bronze", "messages", "transactions"), "not compared with the stream: "),
        "current": "not compared with the collections: ",
    }


@pytest.mark.parametrize("since", ["82", "later", 5])
def test_a_record_that_was_damaged_by_hand_is_refused(
    job: Path, tmp_path: Path, since: Any
) -> None:
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    record = tmp_path / "job" / "job.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "since": since}))
    told = CliRunner().invoke(command, ["verify", "--out", str(tmp_path / "job")])
    assert (told.exit_code, told.output.count("\n")) == (2, 1), told.output
    assert "job.json is damaged: start the job with its arguments of before" in told.output


class WithoutNotifications(Script):
    """A stream whose batches have no notifications, but the first one if that `is_told`."""

    is_told = False

    def end(self, count: int) -> dict[str, Any]:
        end, told = super().end(count), self.is_told
        self.is_told = False
        return end if told else Offset(Offset.of(end).position).document


@pytest.mark.parametrize("is_older", [True, False])
def test_a_lost_table_of_transactions_is_told_if_the_last_batch_has_some(
    tmp_path: Path, is_older: bool
) -> None:
    """No state of another table names an earlier batch with rows in it."""
    record, script = replace(RECORD, tables=("bronze", "transactions")), WithoutNotifications(5)
    out, lost = str(tmp_path / "job"), tmp_path / "job" / "transactions"
    follow(out, tmp_path / "checkpoint", script, batches=3, record=record)
    shutil.copytree(lost, tmp_path / "older")
    follow(out, tmp_path / "checkpoint", script, batches=3, seed=1, record=record)
    shutil.rmtree(lost)
    if is_older:
        (tmp_path / "older").rename(lost)
    with pytest.raises(SourceError, match=LACKS):
        follow(out, tmp_path / "checkpoint", script, record=record)


def test_a_lost_bronze_is_told_though_the_other_tables_end_with_the_first_batch(
    tmp_path: Path,
) -> None:
    record, script = replace(RECORD, tables=("bronze",)), WithoutNotifications(5)
    script.is_told = True
    out, checkpoint = str(tmp_path / "job"), tmp_path / "checkpoint"
    follow(out, checkpoint, script, batches=6, seed=2, record=record)
    assert DeltaLog(f"{out}/notifications").state().batch.number == 0
    shutil.rmtree(tmp_path / "job" / "bronze")
    with pytest.raises(SourceError, match=LACKS):
        follow(out, checkpoint, script, record=record)


@pytest.mark.parametrize("name", sorted({*SIX} - {"current"}))
def test_a_reader_of_a_table_without_some_file_fails(name: str, job: Path, tmp_path: Path) -> None:
    """The job only appends to such a table, so that a lost file does not stop the job."""
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    out = str(tmp_path / "job")
    files(tmp_path / "job" / name, tmp_path)
    follow(out, tmp_path / "checkpoint", SCRIPT)
    with pytest.raises(OSError, match="No such file"):
        rows_in(out, name)


@pytest.mark.parametrize("kept_seconds", [3600, 0])
def test_a_slow_reader_beside_a_vacuum_has_its_version_or_an_error(
    kept_seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "_COMMITS_PER_VACUUM", 1)
    stream, table = RandomChanges(1), tmp_path / "current"
    apply(table, [stream.change(number, n=0) for number in range(300)], 0)
    DeltaLog(str(table)).keep_files(kept_seconds)
    before = documents_in(str(tmp_path))
    reader = DeltaTable(table)
    state = DeltaLog(str(table)).state()
    for number in range(1, 4):
        apply(table, stream.changes(50), number)
    assert documents_in(str(tmp_path)) == stream.collections != before
    if kept_seconds:
        assert reader.to_pyarrow_table().num_rows == len(before)
        found = DeltaLog(str(table)).at(reader.version(), state)
        assert found.count() == len(before)
        slow_down = Mock(side_effect=OSError("503 Slow Down"))
        monkeypatch.setattr(table_version, "existing_files", slow_down)
        with pytest.raises(StreamError, match="correct the path or the access"):
            DeltaLog(str(table)).at(reader.version(), state)
        return
    with pytest.raises(OSError, match="No such file"):
        reader.to_pyarrow_table()
    with pytest.raises(SourceError, match=r"files of version .* have been deleted"):
        DeltaLog(str(table)).at(reader.version(), state)
