"""Checkpoints beside a job's folder: made again from the tables, and two starts on one folder."""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from bson.timestamp import Timestamp
from deltalake import DeltaTable
from typer.testing import CliRunner

from spark_sink.cli import job
from spark_sink.errors import HistoryLostError, OptionError, StreamError
from spark_sink.events.positions import AtTime, Token, is_after, key_of
from spark_sink.folders import Folder
from spark_sink.jobs.history import left_out_events
from spark_sink.jobs.history.left_out_events import replace_lost_batch, seek
from spark_sink.jobs.history.newest_batch import newest_batch, restore_checkpoint
from spark_sink.jobs.history.point_in_time import versions_at
from spark_sink.jobs.history.restoration import lacks_current, rebuild_table
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.table_commits import TableCommits
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.snapshot.queue import SnapshotQueue
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.merge_task import UNAPPLIED
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch
from tests.doubles.scripted_job import RECORD, SIX, Script, check_tables, documents_in, follow
from tests.doubles.scripted_member import event_token
from tests.doubles.two_starts import check_two_starts, pause_starts

ROW = pa.table({"token": ["a"]})
ROUTER = "mongodb://127.0.0.1:1"


def begun(where: Path, *tables: str) -> JobFolder:
    """Return the folder of a new job with these tables."""
    folder = JobFolder(str(where))
    folder.begin(JobRecord(tables=tables))
    return folder


def write(folder: JobFolder, number: int, table: str = "bronze") -> None:
    begin = end_at(number - 1) if number else {}
    batch = Batch("q", number, end_at(number), begin)
    DeltaLog(folder.table(table)).append_rows(ROW, batch)


def test_a_lost_checkpoint_is_made_again_where_it_was(tmp_path: Path) -> None:
    out, kept = str(tmp_path / "job"), tmp_path / "disk"
    folder = JobFolder(out, str(kept))
    assert not restore_checkpoint(folder)[0].query  # there is no job yet
    folder.begin(JobRecord(tables=("bronze",)))
    assert not restore_checkpoint(folder)[0].query  # nor a batch
    for number in range(3):
        write(folder, number)
    for _ in range(2):
        assert restore_checkpoint(JobFolder(out))[0].number == 2
        assert sorted(file.name for file in (kept / "commits").iterdir()) == ["1", "2"]
        assert not (tmp_path / "job" / "checkpoint").exists()
        shutil.rmtree(kept)


def test_a_checkpoint_that_says_what_the_tables_say_stays_and_its_newest_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps a hundred batches, and each file takes requests on an object store."""
    folder, read, text = begun(tmp_path / "job", "bronze"), Counter[str](), Folder.text
    batch = Batch("q", 99, end_at(99), end_at(98))
    DeltaLog(folder.table("bronze")).append_rows(ROW, batch)
    folder.checkpoint.write("q", {number: end_at(number) for number in range(100)}, 99)
    before = folder.checkpoint.batches()

    def counting(where: Folder, path: str) -> str | None:
        read[path] += not path.startswith("_")
        return text(where, path)

    monkeypatch.setattr(Folder, "text", counting)
    assert restore_checkpoint(folder) == (batch, True)
    names = ("metadata", "offsets/98", "offsets/99", "commits/99", "job.json")
    assert +read == dict.fromkeys(names, 1)
    assert folder.checkpoint.batches() == before


def test_an_older_copy_of_a_checkpoint_is_made_again(tmp_path: Path) -> None:
    """A job that goes on from the copy leaves out batches whose numbers the tables have already."""
    folder = begun(tmp_path / "job", "bronze")
    for number in range(3):
        write(folder, number)
    restore_checkpoint(folder)
    for number in range(3, 6):
        write(folder, number)
    (tmp_path / "job" / "checkpoint" / ".metadata.crc").write_text("of the older file")
    assert restore_checkpoint(folder)[0].number == 5
    assert [each.number for each in folder.checkpoint.batches()] == [4, 5]
    assert [path.name for path in (tmp_path / "job" / "checkpoint").glob(".*")] == []
    last = folder.checkpoint.last_committed()
    assert last is not None
    assert last.offset == end_at(5)


def test_a_batch_that_some_table_lacks_is_repeated_and_a_planned_one_is_not(tmp_path: Path) -> None:
    folder = job_with_batches(tmp_path)
    folder.checkpoint.write("q", {2: end_at(2), 3: end_at(9)}, 2)
    restore_checkpoint(folder)
    last = folder.checkpoint.last_planned()
    assert last is not None
    assert (last.number, last.committed is None) == (2, False)
    write(folder, 3)
    restore_checkpoint(folder)
    last = folder.checkpoint.last_planned()
    assert last is not None
    assert (last.number, last.offset, last.committed) == (3, end_at(3), None)


def test_a_table_of_transactions_alone_gets_each_batch(tmp_path: Path) -> None:
    """Otherwise a start would read again what has no transaction, however long ago that was."""
    record, script = replace(RECORD, tables=("transactions",)), Script(5, size=1)
    for event in script.events:
        del event["txnNumber"], event["lsid"]
    follow(str(tmp_path), tmp_path / "first", script, batches=3, record=record)
    folder = JobFolder(str(tmp_path), str(tmp_path / "another"))
    assert restore_checkpoint(folder)[0].number == 2
    assert folder.checkpoint.last_committed() == folder.checkpoint.last_planned()


def job_with_batches(where: Path, count: int = 3) -> JobFolder:
    folder = begun(where, "bronze", "current")
    for number in range(count):
        write(folder, number)
        write(folder, number, "current")
    restore_checkpoint(folder)
    return folder


@pytest.mark.parametrize(
    ("table", "has_checkpoint", "by_time"),
    [("current", True, True), ("bronze", False, False), ("bronze", True, False)],
)
def test_a_table_that_was_restored_is_not_continued(
    tmp_path: Path, table: str, has_checkpoint: bool, by_time: bool
) -> None:
    """The table has the numbers of batches without their rows, and would never take them again."""
    folder = job_with_batches(tmp_path / "job")
    restored = DeltaTable(folder.table(table))
    of_first = datetime.fromtimestamp(restored.history()[-1]["timestamp"] / 1000, UTC)
    restored.restore(of_first if by_time else 0)
    if not has_checkpoint:
        shutil.rmtree(folder.checkpoint.address)
    with pytest.raises(StreamError, match=f"older version of the table at .*{table} was restored"):
        restore_checkpoint(folder)
    # The newest version, restored in turn, has all batches.
    restored.restore(2)
    assert DeltaLog(folder.table(table)).state().batch.number == 2
    assert restore_checkpoint(folder)[0].number == 2


def test_a_table_that_is_restored_while_the_job_runs_gets_no_more_batches(tmp_path: Path) -> None:
    table = DeltaLog(str(tmp_path))
    for number in range(2):
        table.append_rows(ROW, Batch("q", number))
    DeltaTable(tmp_path).restore(0)
    with pytest.raises(StreamError, match="was restored"):
        table.append_rows(ROW, Batch("q", 2))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1


def test_the_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    folder = job_with_batches(tmp_path / "job")
    (tmp_path / "job" / "checkpoint" / "metadata").write_text('{"id": "other"}')
    with pytest.raises(OptionError, match=r"is not that of the tables .*: remove it"):
        restore_checkpoint(folder)
    shutil.rmtree(folder.checkpoint.address)
    assert restore_checkpoint(folder)[0].number == 2


def test_a_checkpoint_in_the_folder_moves_with_it(tmp_path: Path) -> None:
    JobFolder(str(tmp_path / "a")).begin(JobRecord())
    (tmp_path / "a").rename(tmp_path / "b")
    assert JobFolder(str(tmp_path / "b")).checkpoint.address == str(tmp_path / "b" / "checkpoint")


QUERY = "bf5a9a40-b5b2-421d-bc56-f88242bf23cc"
FILES = {
    "metadata": f'{{"id":"{QUERY}"}}',
    "offsets/2": 'v1\n{"batchWatermarkMs":0,"conf":{"a":"b"}}\n{offset}',
    "offsets/1": 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{offset}',
    "commits/2": 'v1\n{"nextBatchWatermarkMs":0}',
    "commits/1": 'v1\n{"nextBatchWatermarkMs":0}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
}
"""Files of a checkpoint, as Spark writes them."""


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("part", [0.0, 0.99, None])
def test_a_damaged_checkpoint_is_made_again_from_the_tables(
    tmp_path: Path, path: str, part: float | None
) -> None:
    folder = job_with_batches(tmp_path / "job")
    for each, whole in FILES.items():
        offset = json.dumps(end_at(int(each[-1]))) if "/" in each else ""
        text = whole.replace(QUERY, "q").replace("{offset}", offset)
        (Path(folder.checkpoint.address) / each).write_text(text)
    damaged = Path(folder.checkpoint.address) / path
    text = damaged.read_text()
    damaged.unlink() if part is None else damaged.write_text(text[: int(len(text) * part)])
    (damaged.parent / f".{damaged.name}.crc").write_bytes(b"crc\0")

    if path == "offsets/2" and part is not None:  # other commands name the remedy
        told = CliRunner().invoke(job, ["status", "--out", folder.address])
        assert told.exit_code == 1, told.output
        assert f"{path} is damaged: start the job, which makes the checkpoint" in told.output
        # No start makes it again for an older batch.
        told = CliRunner().invoke(job, ["offsets", "--out", folder.address])
        assert [json.loads(line)["batch"] for line in told.output.splitlines()] == [1, 2]
    assert restore_checkpoint(folder)[0].number == 2
    assert (folder.checkpoint.query(), folder.checkpoint.offset(2)) == ("q", end_at(2))
    assert (Path(folder.checkpoint.address) / "commits/2").read_text() == FILES["commits/2"]
    assert [*Path(folder.checkpoint.address).rglob(".*.crc")] == []
    assert [each.number for each in folder.checkpoint.batches()] == [1, 2]


def test_a_checkpoint_that_is_damaged_before_the_first_batch_is_not_replaced(
    tmp_path: Path,
) -> None:
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord())
    folder.checkpoint.write("q", {0: {}}, -1)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("")
    with pytest.raises(OptionError, match=r"offsets/0 is damaged: .* remove the folder"):
        restore_checkpoint(folder)
    shutil.rmtree(folder.checkpoint.address)
    assert not restore_checkpoint(folder)[0].query


def test_a_damaged_record_is_written_again_by_the_next_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = job_with_batches(tmp_path), tmp_path / "job.json"
    record, text = folder.record(), path.read_bytes()
    for length in range(len(text)):
        path.write_bytes(text[:length])
        with pytest.raises(OptionError, match="damaged: start the job with its arguments of befo"):
            folder.record()
    for command in ("status", "offsets", "compact", "rebuild", "verify"):
        told = CliRunner().invoke(job, [command, "--out", folder.address])
        assert (told.exit_code, told.output.count("\n")) == (2, 1), told.output
        assert "job.json is damaged" in told.output
    capsys.readouterr()
    for content in (text[:0], text[:40], None):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        again = JobFolder(folder.address)
        again.mend(record)
        assert capsys.readouterr().err.startswith("job.json was damaged, and has")
        assert restore_checkpoint(again)[0].number == 2
        again.begin(record)
        assert again.record() == replace(record, since=key_of(AtTime(Timestamp(2, 1))))
    again.mend(record)
    assert capsys.readouterr().err == ""
    path.write_text(newer := json.dumps({**json.loads(path.read_text()), "region": "eu"}))
    with pytest.raises(StreamError, match=r"newer version .* 'region': run that"):
        again.mend(record)
    assert path.read_text() == newer


def test_a_job_is_not_continued_on_another_cluster(tmp_path: Path) -> None:
    """The oplogs of any cluster reach back to a checkpoint's times, so times alone tell nothing."""
    folder, record = JobFolder(str(tmp_path)), JobRecord(tables=("bronze",))
    folder.begin(record)
    folder.checkpoint.write("q", {0: end_at(100)}, 0)
    for cluster in ("", "65a1", "", "65a1"):  # without the privilege, it is unknown
        folder.begin(replace(record, cluster=cluster))
    with pytest.raises(OptionError, match="has documents of the cluster 65a1, not 65b2: start it"):
        folder.begin(replace(record, cluster="65b2"))
    assert folder.record().cluster == "65a1"


def end_at(seconds: int) -> dict[str, Any]:
    return Offset(AtTime(Timestamp(seconds, 1))).document


def test_a_seek_may_be_corrected_until_the_job_has_been_started(tmp_path: Path) -> None:
    folder, table = begun(tmp_path, "bronze"), DeltaLog(str(tmp_path / "bronze"))
    table.append_rows(ROW, Batch("q", 0, end_at(100)))
    for seconds in (500, 400, 200):
        seek(folder, f"{seconds},1")
        assert planned(folder).position == Offset.of(end_at(seconds)).position
    ahead = int(time.time()) + 3600
    with pytest.raises(OptionError, match="is in the future"):
        seek(folder, f"{ahead},1")
    for seconds in (50, 100):
        with pytest.raises(OptionError, match="before the job's position"):
            seek(folder, f"{seconds},1")

    # MongoDB 8.0 gives all events of an insertMany one cluster time: none after the token is lost.
    tokens = [event_token(Timestamp(400, 1), number) for number in (1, 2, 3)]
    for token in tokens:
        seek(folder, token)
        position = planned(folder).position
        assert all(is_after(Token({"_data": each}), position) for each in tokens)

    # An interrupted batch is in one of the tables: its events would be there twice.
    shutil.rmtree(folder.table("notifications"))
    table.append_rows(ROW, Batch("q", 1, end_at(300), end_at(100)))
    with pytest.raises(OptionError, match="before the job's position"):
        seek(folder, "250,1")
    seek(folder, "400,1")
    with pytest.raises(OptionError, match="before the job's position"):
        seek(folder, "250,1")


def test_a_seek_is_refused_if_a_start_elsewhere_writes_a_batch_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of that batch would be in the one table, and left out for the others."""
    folder = begun(tmp_path, "bronze", "messages")
    for name in ("bronze", "messages"):
        write(folder, 0, name)
    monkeypatch.setattr(left_out_events, "take_over", lambda _: write(folder, 1))
    with pytest.raises(OptionError, match="has written a batch meanwhile: stop it"):
        seek(folder, "500,1")
    assert DeltaLog(folder.table("bronze")).state().batch.offset == end_at(1)


def test_a_batch_that_is_left_out_names_no_table_that_it_will_not_write(tmp_path: Path) -> None:
    """Otherwise each later start is refused, as that table seems to lack the batch."""
    folder = begun(tmp_path, "bronze", "current", "transactions")
    write(folder, 0)
    write(folder, 0, "current")
    batch = Batch("q", 1, end_at(1), end_at(0), written={"transactions": 1, "quarantine": 1})
    for name in ("bronze", "quarantine"):  # then the job was killed
        DeltaLog(folder.table(name)).append_rows(ROW, batch)
    seek(folder, "500,1")
    for name in ("bronze", "quarantine"):
        assert DeltaLog(folder.table(name)).state().batch.written == {"quarantine": 1}


@pytest.mark.parametrize("commits", range(4))
@pytest.mark.parametrize(
    ("having", "lacking"),
    [(("current", "bronze"), "messages"), (("current", "messages", "bronze"), "notifications")],
)
def test_a_start_completes_a_seek_that_was_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commits: int,
    having: tuple[str, ...],
    lacking: str,
) -> None:
    """The first commit of a seek decides. Without one the start repeats the batch."""
    folder = begun(tmp_path, "current", "messages", "bronze")
    for name in ("current", "messages", "bronze"):
        write(folder, 0, name)
    batch = Batch("q", 1, end_at(300), end_at(0), written={lacking: 1})
    for name in having:  # then the job was killed
        DeltaLog(folder.table(name)).append_rows(ROW, batch)
    left, write_commit = [commits], DeltaLog._write

    def killing(log: DeltaLog, *given: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write_commit(log, *given)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(DeltaLog, "_write", killing)
        seek(folder, "500,1")
    replace_lost_batch(folder, ROUTER, restore_checkpoint(folder), 0)
    end = end_at(300)
    if commits:
        gap = Offset(AtTime(Timestamp(500, 1)), events=0, sought=AtTime(Timestamp(300, 1)))
        end = gap.document
    repeated = Batch("q", 1, folder.checkpoint.offset(1), folder.checkpoint.offset(0))
    assert repeated.offset == end
    for name in ("current", "messages", "bronze"):
        log = DeltaLog(folder.table(name))
        log.append_rows(ROW, repeated)
        assert (log.state().batch.offset, log.count()) == (end, 2)
    assert restore_checkpoint(folder)[1] is bool(commits or lacking == "messages")


def test_a_start_that_was_overtaken_does_not_undo_a_later_seek(tmp_path: Path) -> None:
    folder = begun(tmp_path, "bronze", "current")
    for name in ("bronze", "current"):
        write(folder, 0, name)
    seek(folder, "500,1")
    epoch, newest = left_out_events.take_over(folder), restore_checkpoint(folder)
    seek(folder, "300,1")  # on another host
    with pytest.raises(StreamError, match="another start of this job has taken over"):
        replace_lost_batch(folder, ROUTER, newest, epoch)
    assert planned(folder).position == AtTime(Timestamp(300, 1))


def test_a_start_that_was_overtaken_ends_before_it_plans_a_batch(tmp_path: Path) -> None:
    """Without locks, Spark would write the offsets of two queries to one checkpoint."""
    folder = begun(tmp_path, "bronze")
    write(folder, 0)
    first, second = left_out_events.take_over(folder), left_out_events.take_over(folder)
    for epoch in (second, first):
        overtaken = pytest.raises(StreamError, match="another start of this job has taken over")
        with overtaken if epoch == first else nullcontext():
            TableCommits(folder, folder.record(), epoch, TableForm(), ROW.schema)


def test_a_seek_may_be_corrected_also_if_it_makes_its_batch_whole(tmp_path: Path) -> None:
    folder = begun(tmp_path, "current")
    write(folder, 0, "current")
    killed = Batch("q", 1, end_at(300), end_at(0), written={"notifications": 1})
    DeltaLog(folder.table("current")).append_rows(ROW, killed)
    for seconds in (500, 400, 600):
        seek(folder, f"{seconds},1")
        batch, is_whole = newest_batch(folder)
        assert (batch.number, is_whole) == (1, True)
        at = Offset.of(batch.offset)
        assert (at.position, at.sought) == tuple(AtTime(Timestamp(n, 1)) for n in (seconds, 300))


def test_a_killed_seek_is_completed_also_if_current_was_made_again_since(tmp_path: Path) -> None:
    out = str(tmp_path / "job")
    folder = JobFolder(out)
    follow(out, Path(folder.checkpoint.address), Script(5), batches=3)
    batch = DeltaLog(folder.table("bronze")).batch()
    gap = Offset(AtTime(Timestamp(500, 1)), events=0, sought=AtTime(Timestamp(300, 1)))
    DeltaLog(folder.table("bronze")).amend(replace(batch, offset=gap.document))
    DeltaLog(folder.table("quarantine")).append([], arrow_schema(UNAPPLIED), batch)
    shutil.rmtree(folder.table("current"))
    rebuild_table(None, folder)
    assert restore_checkpoint(folder) == (replace(batch, offset=gap.document), True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_table_that_is_lost_within_a_batch_quarantines_what_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """The batch fails because files of current are lost: no other table but bronze has it yet.

    A rebuild that is killed before the last batch goes on there.
    """
    out, script, write_commit = str(tmp_path / "job"), Script(5), DeltaLog._write
    folder = JobFolder(out)
    follow(out, Path(folder.checkpoint.address), script, batches=3)

    def failing(log: DeltaLog, *given: Any) -> None:
        if log.name != "bronze":
            raise StreamError("a file is lost")
        write_commit(log, *given)

    with monkeypatch.context() as patched, suppress(StreamError):
        patched.setattr(DeltaLog, "_write", failing)
        follow(out, Path(folder.checkpoint.address), script, batches=1)
    shutil.rmtree(folder.table("current"))
    if is_killed:
        apply = CurrentTable.apply_staged

        def killed(table: CurrentTable, *given: Any) -> None:
            if table.log.exists:
                raise StreamError("killed")
            apply(table, *given)

        with monkeypatch.context() as patched:
            patched.setattr(CurrentTable, "apply_staged", killed)
            with pytest.raises(StreamError, match="killed"):
                rebuild_table(None, folder)
        assert lacks_current(folder)
    rebuild_table(None, folder)
    assert not lacks_current(folder)
    assert newest_batch(folder)[0].number == DeltaLog(folder.table("current")).batch().number
    follow(out, Path(folder.checkpoint.address), script)
    check_tables(out, script)


def test_a_batch_that_is_committed_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`job check` reads the tables while the job runs."""
    folder, read = begun(tmp_path, "bronze"), DeltaLog.require_not_restored
    write(folder, 0)

    def committed_meanwhile(log: DeltaLog, *given: str) -> None:
        read(log, *given)
        folder.checkpoint.write("q", {0: end_at(0), 1: end_at(1)}, 1)

    folder.checkpoint.write("q", {0: end_at(0)}, 0)
    monkeypatch.setattr(DeltaLog, "require_not_restored", committed_meanwhile)
    assert newest_batch(folder)[0].number == 0


def test_batches_that_are_committed_while_the_tables_are_read_are_not_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`job check`, and a start on another machine, read the tables of a job that runs."""
    folder, read = begun(tmp_path, "bronze", "current"), DeltaLog._open
    later = [*product((1, 2), ("bronze", "current"))]
    for name in ("bronze", "current"):
        write(folder, 0, name)

    def committed_meanwhile(log: DeltaLog) -> None:
        read(log)
        given, later[:] = [*later], []
        for number, name in given:
            write(folder, number, name)

    monkeypatch.setattr(DeltaLog, "_open", committed_meanwhile)
    batch, is_whole = newest_batch(folder)
    assert (batch.number, is_whole) == (2, True)


def planned(folder: JobFolder) -> Offset:
    """Return the end of batch 1, which the next start repeats."""
    assert restore_checkpoint(folder)[0].number == 1
    last = folder.checkpoint.last_planned()
    assert last is not None
    assert (last.number, last.committed) == (1, None)
    return last.end


@pytest.mark.parametrize(("seconds", "told"), [(150, ""), (300, ", without the signals")])
def test_a_seek_moves_the_position_in_the_collection_of_signals(
    tmp_path: Path, seconds: int, told: str
) -> None:
    """A former position ends each later start with a lost history, also after another seek."""
    folder = begun(tmp_path, "bronze")
    signals = SnapshotQueue(("a",), signal_position=AtTime(Timestamp(200, 1)))
    end = Offset(AtTime(Timestamp(100, 1)), snapshots=signals).document
    DeltaLog(folder.table("bronze")).append_rows(ROW, Batch("q", 0, end))
    for _ in range(2):
        assert told in seek(folder, f"{seconds},1")
        assert planned(folder).snapshots == (
            replace(signals, signal_position=None) if told else signals
        )


def test_a_seek_follows_a_batch_that_spark_has_not_committed(tmp_path: Path) -> None:
    """A seek from the batch before it keeps notifications of a batch that does not exist."""
    folder = begun(tmp_path, "bronze")
    write(folder, 0)
    folder.checkpoint.write("q", {0: end_at(0)}, -1)
    for seconds in (300, 250):
        seek(folder, f"{seconds},1")
        assert planned(folder).position == Offset.of(end_at(seconds)).position
        assert folder.checkpoint.offset(0) == end_at(0)


@pytest.mark.parametrize(
    ("mode", "lost", "events", "replaced"),
    [
        ("when_needed", True, 3, True),
        ("when_needed", True, 0, False),  # a batch without events is repeated without oplogs
        ("when_needed", False, 3, False),
        ("initial", True, 3, False),
    ],
)
def test_a_batch_in_progress_that_the_oplogs_have_lost_is_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    lost: bool,
    events: int,
    replaced: bool,
) -> None:
    """Spark would repeat it at every start, whatever the options say of a lost history."""
    history = HistoryLostError("lost") if lost else None
    monkeypatch.setattr(RouterClient, "require_history", Mock(side_effect=history))
    monkeypatch.setattr(RouterClient, "present", lambda _: Timestamp(400, 1))
    folder = JobFolder(str(tmp_path))
    folder.begin(JobRecord(tables=("bronze", "messages"), options={"snapshotMode": mode}))
    write(folder, 0, "messages")
    end = Offset(AtTime(Timestamp(300, 1)), events=events).document
    batch = Batch("q", 1, end, end_at(100))
    DeltaLog(folder.table("bronze")).append_rows(ROW, batch)
    replace_lost_batch(folder, ROUTER, restore_checkpoint(folder), 0)
    at = planned(folder)
    assert at.sought == (AtTime(Timestamp(300, 1)) if replaced else None)
    assert at.position == AtTime(Timestamp(*((400, 2) if replaced else (300, 1))))
    assert ("the oplogs have lost events" in capsys.readouterr().err) == replaced
    version = DeltaLog(folder.table("bronze")).version
    # Of the gap nothing is read.
    replace_lost_batch(folder, ROUTER, restore_checkpoint(folder), 0)
    assert DeltaLog(folder.table("bronze")).version == version
    assert planned(folder) == at


@pytest.mark.parametrize("seed", range(5))
def test_of_two_starts_no_event_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    pause_starts(monkeypatch)
    check_two_starts(str(tmp_path / "job"), tmp_path, seed)


def of_delta_rs(folder: Path) -> None:
    """Clean up a log as delta-rs does, beyond a retention that has passed."""
    table = DeltaTable(folder)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 seconds"})
    table.create_checkpoint()
    for each in (folder / "_delta_log").glob("*.json"):
        os.utime(each, (0, 0))
    table.cleanup_metadata()


def all_commits(folder: Path) -> None:
    """Leave a checkpoint, and the commit at its version, as Spark's clean-up does."""
    table = DeltaTable(folder)
    table.create_checkpoint()
    for each in (folder / "_delta_log").glob("*.json"):
        if int(each.stem) < table.version():
            each.unlink()


def behind_others(folder: Path) -> None:
    """Compact and vacuum a table as others do, which say nothing of the job, and clean up."""
    table = DeltaTable(folder)
    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    all_commits(folder)


@pytest.mark.parametrize("clean_up", [of_delta_rs, all_commits, behind_others])
def test_a_job_whose_logs_have_expired_goes_on(
    tmp_path: Path, clean_up: Callable[[Path], None]
) -> None:
    out, script = str(tmp_path / "job"), Script(5, size=1)
    follow(out, tmp_path / "first", script, batches=4)
    folder = JobFolder(out, str(tmp_path / "first"))
    last = folder.checkpoint.last_committed()
    assert last is not None
    count = script.before(last.offset)
    half, reached = script.time(count // 2), script.time(count)
    versions_at(folder, half)
    made = rebuild_table(None, folder, half, str(tmp_path / "before")).log.count()
    for name in SIX:
        clean_up(tmp_path / "job" / name)

    assert set(versions_at(folder, reached)[2]) >= {"bronze", "messages", "current"}
    with pytest.raises(StreamError, match=r"has no versions of .*make the table again"):
        versions_at(folder, half)
    assert rebuild_table(None, folder, half, str(tmp_path / "then")).log.count() == made
    assert documents_in(str(tmp_path / "then")) == documents_in(str(tmp_path / "before"))
    documents = documents_in(out)
    shutil.rmtree(tmp_path / "job" / "current")
    rebuild_table(None, folder)
    assert documents_in(out) == documents
    follow(out, tmp_path / "another", script)
    check_tables(out, script)


@pytest.mark.parametrize(
    ("name", "has_checkpoint"), [("bronze", True), ("messages", False), ("current", True)]
)
def test_a_table_that_was_restored_is_not_continued_once_its_log_has_expired(
    tmp_path: Path, name: str, has_checkpoint: bool
) -> None:
    """Only the files still tell that the table was restored, no commit does."""
    out, script = str(tmp_path / "job"), Script(5)
    follow(out, tmp_path / "first", script, batches=3)
    table = DeltaTable(tmp_path / "job" / name)
    table.restore(table.version() - 1)
    behind_others(tmp_path / "job" / name)
    checkpoint = tmp_path / ("first" if has_checkpoint else "another")
    with pytest.raises(StreamError, match=f"older version of the table at .*{name} was restored"):
        follow(out, checkpoint, script)
