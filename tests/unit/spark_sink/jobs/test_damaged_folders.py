"""A job in whose folder someone deletes or mixes files: nothing is lost unseen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_sink.errors import SourceError
from spark_sink.jobs.query_run import cause_of
from spark_sink.tables import upsert
from spark_sink.tables.delta_log import DeltaLog
from tests.doubles.scripted_job import SIX, Script, check_tables, documents_in, follow, rows_in
from tests.unit.spark_sink.tables.test_current_table import Stream, apply

LACKS, NO_STATE = "lacks batches", "has lost its file"
LOST = "a file of the table current is lost or cannot be read: restore it, or remove the table"
UNREADABLE = "cannot be read or written"


def data_files(name: str) -> Callable[[Path, Path], None]:
    """Delete the files that a table has now."""

    def delete(job: Path, _: Path) -> None:
        for each in DeltaLog(str(job / name)).paths():
            (job / name / each).unlink()

    return delete


def newest(name: str, pattern: str) -> Callable[[Path, Path], None]:
    """Delete the newest file of a table with such a path."""

    def delete(job: Path, _: Path) -> None:
        max((job / name).glob(pattern), key=lambda each: (each.stat().st_mtime_ns, each)).unlink()

    return delete


def folder(path: str) -> Callable[[Path, Path], None]:
    """Delete a folder of the job."""
    return lambda job, _: shutil.rmtree(job / path)


def laid_over(name: str, *, log_is_older: bool) -> Callable[[Path, Path], None]:
    """Copy an older table over the newer one, whose later commits are deleted or stay."""

    def copy(job: Path, older: Path) -> None:
        kept = {each.name for each in (older / name / "_delta_log").iterdir()}
        for each in (job / name / "_delta_log").iterdir() if log_is_older else ():
            if each.name not in kept:
                each.unlink()
        shutil.copytree(older / name, job / name, dirs_exist_ok=True)

    return copy


# What is done to the folder of a job that has stopped, and how the next start ends; without an
# error the tables have everything.
ATTACKS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "files of current": (data_files("current"), LOST),
    "the newest commit of current": (newest("current", "_delta_log/*.json"), LACKS),
    "the newest commit of bronze": (newest("bronze", "_delta_log/*.json"), LACKS),
    "the newest commit of messages": (newest("messages", "_delta_log/*.json"), LACKS),
    "the first commit of current": (
        lambda job, _: min((job / "current/_delta_log").glob("*.json")).unlink(),
        UNREADABLE,
    ),
    "the newest state of current": (newest("current", "_mergerouter/*.json"), NO_STATE),
    "the states of bronze": (folder("bronze/_mergerouter"), NO_STATE),
    "staged changes": (folder("current/_changes"), ""),
    "the log of current": (folder("current/_delta_log"), LACKS),
    "the log of bronze": (folder("bronze/_delta_log"), LACKS),
    "an older current over the newer one": (laid_over("current", log_is_older=False), ""),
    "an older bronze over the newer one": (laid_over("bronze", log_is_older=False), ""),
    "an older log of current": (laid_over("current", log_is_older=True), LACKS),
    "an older log of bronze": (laid_over("bronze", log_is_older=True), LACKS),
    "an older log of messages": (laid_over("messages", log_is_older=True), LACKS),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_start_goes_on_with_all_events_or_names_what_is_lost(name: str, tmp_path: Path) -> None:
    attack, refusal = ATTACKS[name]
    out, script = tmp_path / "job", Script(5)
    follow(str(out), tmp_path / "checkpoint", script, batches=2)
    shutil.copytree(out, tmp_path / "older")
    follow(str(out), tmp_path / "checkpoint", script, seed=1, batches=2)
    attack(out, tmp_path / "older")
    if refusal:
        with pytest.raises((SourceError, FileNotFoundError)) as refused:
            follow(str(out), tmp_path / "checkpoint", script)
        assert refusal in cause_of(refused.value)
    else:
        follow(str(out), tmp_path / "checkpoint", script)
        check_tables(str(out), script)


@pytest.mark.parametrize("name", sorted({*SIX} - {"current"}))
def test_a_reader_of_a_table_without_some_file_fails(name: str, tmp_path: Path) -> None:
    """The job only appends to it, and need not read it."""
    out, script = tmp_path / "job", Script(5)
    follow(str(out), tmp_path / "checkpoint", script, batches=3)
    data_files(name)(out, out)
    follow(str(out), tmp_path / "checkpoint", script, seed=1)
    with pytest.raises(OSError, match="No such file"):
        rows_in(str(out), name)


@pytest.mark.parametrize("kept_seconds", [3600, 0])
def test_a_slow_reader_beside_a_vacuum_has_its_version_or_an_error(
    kept_seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert, "_COMMITS_PER_VACUUM", 1)
    stream, table = Stream(1), tmp_path / "current"
    apply(table, [stream.change(number, n=0) for number in range(300)], 0)
    DeltaLog(str(table)).keep_files(kept_seconds)
    before = documents_in(str(tmp_path))
    reader = DeltaTable(table)
    position = DeltaLog(str(table)).position()
    for number in range(1, 4):
        apply(table, stream.changes(50), number)
    assert documents_in(str(tmp_path)) == stream.collections != before
    if kept_seconds:
        assert reader.to_pyarrow_table().num_rows == len(before)
        found = DeltaLog(str(table)).at(reader.version(), position)
        assert found.count() == len(before)
        return
    with pytest.raises(OSError, match="No such file"):
        reader.to_pyarrow_table()
    with pytest.raises(SourceError, match=r"files of version .* have been deleted"):
        DeltaLog(str(table)).at(reader.version(), position)
