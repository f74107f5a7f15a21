"""Delta tables of files that tasks have written, read back by readers of other projects."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from spark_sink.errors import OptionError, StreamError
from spark_sink.jobs import compaction
from spark_sink.jobs.compaction import merge_small_files
from spark_sink.tables import delta_log, table_version
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.parquet_parts import PartFile, Parts
from spark_sink.tables.state_files import clean_states, newest_state, read_state, write_state
from spark_sink.tables.table_state import Batch, TableState
from spark_sink.tables.table_version import DeletedVersionError

SCHEMA = pa.schema(
    [
        pa.field("token", pa.string(), nullable=False),
        pa.field("clusterTime", pa.timestamp("us", tz="UTC")),
        pa.field("fullDocument", pa.string()),
        pa.field("event", pa.binary()),
        pa.field("namespace", pa.string()),
        pa.field("bucket", pa.int32()),
    ]
)
NAMES = ("shop.orders", "shop.a b", "x%y/ü='{*}\\", None)
"""Collections' names that a folder's name cannot have as they are, and none."""
TIME = datetime(2026, 1, 31, 12, 0, 7, tzinfo=UTC)


def rows_of(numbers: Sequence[int], **changed: Any) -> list[dict[str, Any]]:
    return [
        {
            "token": f"82{number:06}",
            "clusterTime": TIME,
            "fullDocument": f'{{"_id": {number}}}',
            "event": b"\0" * number,
            "namespace": NAMES[number % len(NAMES)],
            "bucket": number % 2,
            **changed,
        }
        for number in numbers
    ]


def written(
    address: Path,
    rows: list[dict[str, Any]],
    partitions: Sequence[str] = ("bucket",),
    schema: pa.Schema = SCHEMA,
) -> list[PartFile]:
    """Write rows as a task does; the writer reaches it pickled, the rows in batches."""
    parts = Parts(str(address), schema, partitions)
    for batch in pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=7):
        parts.add(pa.Table.from_batches([batch]))
    return parts.close()


def tokens_of(address: Path) -> list[str]:
    return sorted(DeltaTable(address).to_pyarrow_table(columns=["token"])["token"].to_pylist())


def batch(number: int, query: str = "q") -> Batch:
    return Batch(query, number, {"_data": f"82{number}"})


def of(complete_from: str, newest: Batch = Batch()) -> TableState:  # noqa: B008 - it is frozen
    return TableState(complete_from=complete_from, batch=newest)


def test_files_are_left_out_by_the_columns_after_a_struct(tmp_path: Path) -> None:
    log, kind = DeltaLog(str(tmp_path)), pa.struct([("fragment", pa.int64())])
    rows = pa.table({"token": ["82"], "splitEvent": pa.nulls(1, kind)})
    for number in range(3):
        log.append_rows(rows, batch(number))
    assert len(log.files_with([("batch", "==", 1)])) == 1
    assert DeltaTable(tmp_path).to_pyarrow_table()["splitEvent"].null_count == 3


def test_rows_are_read_back_by_other_readers(tmp_path: Path) -> None:
    rows, log = rows_of(range(40)), DeltaLog(str(tmp_path), ("namespace", "bucket"))
    parts = written(tmp_path, rows, ("namespace", "bucket"))
    log.append(parts, SCHEMA, batch(0))
    assert len(parts) == 4  # the names and the buckets are those of the number modulo 4
    table = DeltaTable(tmp_path).to_pyarrow_table()
    assert sorted(table.to_pylist(), key=lambda row: row["token"]) == rows
    assert all((tmp_path / each.path).is_file() for each in log.files_with())
    named = [each.partition["namespace"] for each in log.files_with()]
    assert [named.count(name) for name in NAMES] == [1, 1, 1, 1]
    assert log.count() == 40
    for operator, number, count in (
        ("==", 7, 1), ("<", 4, 4), ("<=", 4, 5), (">", 35, 4), (">=", 35, 5), ("==", 99, 0)
    ):  # fmt: skip
        chosen = [("token", operator, f"82{number:06}"), pa.compute.field("bucket").is_valid()]
        found = [token for rows in log.rows(["token"], chosen) for token in rows["token"]]
        assert len(found) == count
    assert log.files_with([("token", ">", "82000040")]) == []
    assert len(log.files_with([("fullDocument", "==", "none")])) == 4  # it has no statistics
    # A reader leaves out files by the statistics.
    pruned = DeltaTable(tmp_path).file_uris(file_pruning_predicate=[("token", "=", "82000000")])
    assert len(pruned) == 1
    [first, *_] = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert (first["min.clusterTime"], first["max.clusterTime"]) == (TIME, TIME)
    assert first["min.token"] < first["max.token"]
    assert "min.fullDocument" not in first or first["min.fullDocument"] is None


def test_one_commit_replaces_buckets_and_sets_the_state(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path), ("bucket",))
    log.replace(written(tmp_path, rows_of(range(10))), SCHEMA, of("a"))
    reader = DeltaTable(tmp_path)
    log.replace(
        written(tmp_path, rows_of([100], bucket=1)),
        SCHEMA,
        of("b", batch(4)),
        replaced=["1"],
    )
    assert tokens_of(tmp_path) == [*(f"82{number:06}" for number in range(0, 10, 2)), "82000100"]
    assert DeltaLog(str(tmp_path)).state() == of("b", batch(4))
    assert log.has(batch(4))
    assert not log.has(batch(5))
    assert not log.has(Batch("another query", 1))
    with pytest.raises(StreamError, match="another start has written it"):
        log.has(batch(5, "another query"))
    # A bucket that becomes empty, and a state without rows.
    log.replace([], SCHEMA, of("c", batch(4)), replaced=["0"])
    log.replace([], SCHEMA, of("d", batch(4)))
    assert tokens_of(tmp_path) == ["82000100"]
    assert log.state() == of("d", batch(4))
    assert reader.to_pyarrow_table().num_rows == 10  # readers of a version keep it


def test_a_batch_is_appended_once(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path), ("bucket",))
    for number in range(3):
        log.append(written(tmp_path, rows_of([number])), SCHEMA, batch(number))
    [orphan] = written(tmp_path, rows_of([9]))  # by a task that ran twice
    assert tokens_of(tmp_path) == [f"82{number:06}" for number in range(3)]
    file = tmp_path / orphan.path
    os.utime(file, (time.time() - 86400,) * 2)
    log.vacuum(full=True)
    assert file.exists()  # a commit may still name it
    os.utime(file, (0, 0))
    log.vacuum()
    assert file.exists()
    log.vacuum(full=True)
    assert not file.exists()
    assert tokens_of(tmp_path) == [f"82{number:06}" for number in range(3)]
    again = DeltaLog(str(tmp_path))
    assert [again.has(batch(number)) for number in (2, 3)] == [True, False]
    assert again.batch() == batch(2)
    assert again.state().checksum.rows == 3


OTHERS = {
    "an earlier batch": Batch("q", 4, {"_data": "824"}, {"_data": "823"}),
    "another end": Batch("q", 5, {"_data": "825b"}, {"_data": "824"}),
    "another beginning": Batch("q", 5, {"_data": "825"}, {"_data": "824b"}),
    "a batch after another one": Batch("q", 6, {"_data": "826"}, {"_data": "825b"}),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_batch_is_the_same_only_with_the_same_offsets(other: Batch, tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path))
    ours = Batch("q", 5, {"_data": "825"}, {"_data": "824"})
    log.append(written(tmp_path, rows_of([5]), ()), SCHEMA, ours)
    assert log.has(ours)
    with pytest.raises(StreamError, match="another start has written it: run one process"):
        log.has(other)
    assert not log.has(Batch("q", 6, {"_data": "826"}, {"_data": "825"}))


@pytest.mark.parametrize("kind", ["append", "replace", "statistics", "add columns"])
def test_a_commit_that_an_earlier_start_has_planned_is_refused(kind: str, tmp_path: Path) -> None:
    DeltaLog(str(tmp_path), ("bucket",)).append([], SCHEMA, batch(0))
    earlier = DeltaLog(str(tmp_path), ("bucket",), epoch=5)
    earlier.reload()
    parts = written(tmp_path, rows_of([1]))
    later = DeltaLog(str(tmp_path), ("bucket",), epoch=earlier.later_epoch())
    later.reload()
    wider = SCHEMA.append(pa.field("wider", pa.string()))
    commits: dict[str, Callable[[], None]] = {
        "append": lambda: earlier.append(parts, SCHEMA, batch(1)),
        "replace": lambda: earlier.replace(
            parts, SCHEMA, TableState(batch=batch(1)), replaced=["0"]
        ),
        "statistics": lambda: earlier.replace(
            [], SCHEMA, TableState(batch=batch(1)), statistics_columns=["token"]
        ),
        "add columns": lambda: earlier.append(parts, wider, batch(1)),
    }
    with pytest.raises(StreamError, match="another start of this job has taken over the table"):
        commits[kind]()
    with pytest.raises(StreamError, match="another start of this job has taken over"):
        DeltaLog(str(tmp_path), epoch=5).reload()
    later.append(parts, SCHEMA, batch(1))
    DeltaTable(tmp_path).optimize.compact()  # others may compact it
    later.append([], SCHEMA, batch(2))
    assert tokens_of(tmp_path) == ["82000001"]


def test_new_columns_are_added_and_changed_types_are_refused(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path), ("bucket",))
    log.append(written(tmp_path, rows_of([1])), SCHEMA, batch(1))
    wider = SCHEMA.append(pa.field("typed", pa.struct([pa.field("n", pa.int32())])))
    rows = rows_of([2], typed={"n": 5})
    log.append(written(tmp_path, rows, schema=wider), wider, batch(2))
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("token").to_pylist()
    assert [row["typed"] for row in found] == [None, {"n": 5}]
    assert log.state().batch.number == 2
    other = SCHEMA.set(2, pa.field("fullDocument", pa.binary()))
    with pytest.raises(OptionError, match="other types of fullDocument: start the query with"):
        log.append([], other, batch(3))


def test_compaction_and_vacuum_keep_rows_state_and_new_files(tmp_path: Path) -> None:
    table = appended(tmp_path, 6)
    log, before = table, tokens_of(tmp_path)
    assert merge_small_files(table) == (6, 2)
    assert merge_small_files(table) == (2, 2)
    assert tokens_of(tmp_path) == before
    assert log.state().batch.number == 5
    assert log.has(batch(5))
    version = DeltaTable(tmp_path).version()
    log.vacuum(full=True)
    assert DeltaTable(tmp_path).version() == version  # so that it meets no commit of a job
    for kept, left in ((7200, 8), (7200, 8), (0, 2)):  # a reader may still need the former six
        log.keep_files(kept)
        DeltaLog(str(tmp_path)).vacuum()
        assert len(list(tmp_path.rglob("*.parquet"))) == left
        found = DeltaTable(tmp_path).metadata().configuration
        assert found["delta.deletedFileRetentionDuration"] == f"interval {kept} seconds"
        assert found["delta.logRetentionDuration"] == "interval 86400 seconds"
    assert DeltaTable(tmp_path).version() == version + 2
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert tokens_of(tmp_path) == before
    assert DeltaLog(str(tmp_path)).state().batch.number == 5


def test_a_table_may_keep_its_files_for_longer_than_orphans(tmp_path: Path) -> None:
    table, day = appended(tmp_path, 2, ()), 24 * 3600
    merge_small_files(table)
    orphan = tmp_path / "part-orphan.parquet"
    for age, deleted in ((10, 0), (40, 1)):
        table.keep_files(30 * day)
        orphan.touch()
        for each in tmp_path.glob("*.parquet"):
            os.utime(each, (time.time() - age * day,) * 2)
        assert table.vacuum(full=True) == deleted
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_an_error_of_the_storage_does_not_shorten_the_age_of_orphans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = appended(tmp_path, 2, ())
    orphan = tmp_path / "part-orphan.parquet"
    orphan.touch()
    os.utime(orphan, (time.time() - 24 * 3600,) * 2)
    vacuum = DeltaTable.vacuum

    def fail(of: DeltaTable, hours: int | None = None, **given: Any) -> list[str]:
        if hours is not None:
            raise DeltaError("Generic error: the list of files is not complete")
        return vacuum(of, **given)

    monkeypatch.setattr(DeltaTable, "vacuum", fail)
    with pytest.raises(StreamError, match="is not complete"):
        table.vacuum(full=True)
    assert orphan.exists()


def appended(folder: Path, count: int, partitions: Sequence[str] = ("bucket",)) -> DeltaLog:
    """Make a table of as many batches, of a row each."""
    table = DeltaLog(str(folder), partitions)
    for number in range(count):
        table.append(written(folder, rows_of([number]), partitions), SCHEMA, batch(number))
    return table


def compacts(folder: Path) -> None:
    merge_small_files(DeltaLog(str(folder), ("bucket",)))


def compacts_as_others(folder: Path) -> None:
    DeltaTable(folder).optimize.compact()


def replaces(folder: Path) -> None:
    kept = written(folder, rows_of([0]))
    DeltaLog(str(folder), ("bucket",)).replace(
        kept, SCHEMA, TableState(batch=batch(4)), replaced=["0"]
    )


def deletes(folder: Path) -> None:
    DeltaTable(folder).delete("token = '82000002'")


def appends(folder: Path) -> None:
    DeltaLog(str(folder)).append(written(folder, rows_of([4])), SCHEMA, batch(4))


# What another program commits, the rows after it, how many files there are before and after.
MEANWHILE: dict[str, tuple[Callable[[Path], None], Sequence[int], tuple[int, int]]] = {
    "a compaction": (compacts, range(4), (4, 2)),
    "a compaction by others": (compacts_as_others, range(4), (4, 2)),
    "a replacement": (replaces, (0, 1, 3), (4, 2)),
    "a deletion": (deletes, (0, 1, 3), (4, 2)),
    "a batch": (appends, range(5), (4, 3)),
}


# When it does: after the compaction has chosen its files, or just before it commits the new ones.
WHEN: dict[str, tuple[Any, str]] = {
    "chosen": (compaction, "_small_files"),
    "found": (DeltaTable, "create_write_transaction"),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kind", MEANWHILE)
def test_a_compaction_keeps_the_rows_of_what_is_committed_meanwhile(
    kind: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, numbers, files = MEANWHILE[kind]
    table, original, calls = appended(tmp_path, 4), getattr(*WHEN[when]), []

    def meets_another(*args: Any, **options: Any) -> Any:
        calls.append(args)
        found = original(*args, **options) if when == "chosen" else None
        if len(calls) == 1:
            commit(tmp_path)
        return found if when == "chosen" else original(*args, **options)

    monkeypatch.setattr(*WHEN[when], meets_another)
    assert merge_small_files(table) == files
    assert calls
    assert tokens_of(tmp_path) == [f"82{number:06}" for number in numbers]
    DeltaLog(str(tmp_path)).vacuum(full=True)
    table.append(written(tmp_path, rows_of([9])), SCHEMA, batch(9))
    assert len(DeltaTable(tmp_path).to_pyarrow_table()) == len(numbers) + 1


def test_a_batch_replaces_the_rows_that_others_compact_meanwhile(tmp_path: Path) -> None:
    table = appended(tmp_path, 4)
    compacts_as_others(tmp_path)
    table.replace(
        written(tmp_path, rows_of([1, 5])), SCHEMA, TableState(batch=batch(4)), replaced=["1"]
    )
    assert tokens_of(tmp_path) == [f"82{number:06}" for number in (0, 1, 2, 5)]
    DeltaTable(tmp_path).alter.set_table_properties({"n": "1"}, raise_if_not_exists=False)
    with pytest.raises(StreamError, match="has been written by another query"):
        table.replace([], SCHEMA, TableState(batch=batch(5)), replaced=["1"])


@pytest.mark.parametrize("appended_first", [False, True])
def test_no_commit_comes_between_those_of_a_new_column(
    appended_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one declares the column's statistics, the second one has its rows."""
    table, declare = appended(tmp_path, 2), DeltaLog._set_properties

    def with_another(log: DeltaLog, properties: Mapping[str, str]) -> None:
        if appended_first:
            appends(tmp_path)
        declare(log, properties)
        if not appended_first:
            appends(tmp_path)

    monkeypatch.setattr(DeltaLog, "_set_properties", with_another)
    wider = SCHEMA.append(pa.field("region", pa.string()))
    with pytest.raises(StreamError, match="has been written by another query"):
        table.replace([], wider, TableState(batch=batch(2)), ["1"], ("region",))
    assert "region" not in DeltaTable(tmp_path).to_pyarrow_table().column_names


def test_a_compaction_whose_commit_the_store_does_not_confirm_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, original, calls = appended(tmp_path, 4), DeltaTable.create_write_transaction, []

    def unconfirmed(*args: Any, **options: Any) -> None:
        calls.append(original(*args, **options))
        raise CommitFailedError("the version exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unconfirmed)
    assert merge_small_files(table) == (4, 2)
    assert len(calls) == 1
    assert tokens_of(tmp_path) == [f"82{number:06}" for number in range(4)]


def test_partitions_of_odd_names_are_compacted(tmp_path: Path) -> None:
    long = f"shop.{'ü#' * 83}x"  # 255 bytes, the most of a collection's full name
    names = [*NAMES, "shop.<|>`&;", "shop.a~b", long]
    table, rows = DeltaLog(str(tmp_path), ("namespace", "bucket")), []
    for number in range(3):
        found = [rows_of([10 * number + i], namespace=n, bucket=i)[0] for i, n in enumerate(names)]
        rows += found
        table.append(written(tmp_path, found, ("namespace", "bucket")), SCHEMA, batch(number))
        assert merge_small_files(table)[1] == len(names)
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["token"]) == rows
    [part, *_] = {each.path for each in table.files_with()}
    file = pa.parquet.ParquetFile(tmp_path / part)
    assert file.metadata.num_row_groups == 1
    DeltaTable(tmp_path).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    )
    DeltaLog(str(tmp_path)).vacuum()
    assert len(list(tmp_path.rglob("*.parquet"))) == len(names)


def test_commits_older_than_their_retention_are_deleted_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "_COMMITS_PER_CLEANUP", 10)
    log = DeltaLog(str(tmp_path))
    log.append(written(tmp_path, rows_of([1]), ()), SCHEMA, batch(0))
    commits = tmp_path / "_delta_log"
    for number in range(1, 21):
        log.append([], SCHEMA, batch(number))
        if number == 12:
            two_days_ago = time.time() - 2 * 86400
            for each in commits.glob("*.json"):
                os.utime(each, (two_days_ago, two_days_ago))
            DeltaTable(tmp_path).create_checkpoint()
    left = sorted(int(each.stem) for each in commits.glob("*.json"))
    assert left[0] >= 9
    assert left[-1] == 20
    assert tokens_of(tmp_path) == ["82000001"]
    again = DeltaLog(str(tmp_path))
    assert again.has(batch(20))
    assert again.state().batch.number == 20


def test_a_clean_up_that_fails_is_printed_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delta_log, "_COMMITS_PER_CLEANUP", 1)
    clean, attempts = delta_log.clean_states, list[int]()

    def clean_or_fail(address: str, number: int) -> None:
        attempts.append(number)
        if len(attempts) == 1:
            raise OSError("503 Slow Down")
        clean(address, number)

    monkeypatch.setattr(delta_log, "clean_states", clean_or_fail)
    log = DeltaLog(str(tmp_path))
    log.append(written(tmp_path, rows_of([1]), ()), SCHEMA, batch(0))
    for number in (1, 2):
        log.append([], SCHEMA, batch(number))
    assert log.has(batch(2))
    assert len(attempts) == 2
    assert capsys.readouterr().err.count("is not cleaned up; the job continues: ") == 1


def test_the_state_is_found_after_the_commits_of_others(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path), ("bucket",))
    log.append(written(tmp_path, rows_of([1])), SCHEMA, batch(7))
    for number in range(25):
        table = pa.Table.from_pylist(rows_of([number]), SCHEMA)
        write_deltalake(tmp_path, table, mode="append")
    assert (
        DeltaLog(str(tmp_path)).state().batch.number
        == newest_state(str(tmp_path)).batch.number
        == 7
    )
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    for each in (tmp_path / "_delta_log").glob("*.json"):
        if int(each.stem) < table.version():
            each.unlink()
    assert newest_state(str(tmp_path)) == DeltaLog(str(tmp_path)).state()
    log.reload()
    for number in range(8, 14):
        log.append([], SCHEMA, batch(number))
        assert newest_state(str(tmp_path)).batch.number == number
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text("{")  # the hint alone is damaged
    assert newest_state(str(tmp_path)).batch.number == 13
    assert newest_state(str(tmp_path / "none")) == TableState()


def test_states_are_kept_for_an_hour_and_a_lost_or_damaged_one_is_told(tmp_path: Path) -> None:
    address = str(tmp_path)
    numbers = [write_state(address, TableState(batch=batch(number))) for number in range(3)]
    for number in numbers[:2]:
        os.utime(tmp_path / "_mergerouter" / f"{number}.json", (0, 0))
    clean_states(address, numbers[2])
    assert read_state(address, numbers[2]).batch == batch(2)
    with pytest.raises(StreamError, match=r"has lost its file _mergerouter/.*from a backup"):
        read_state(address, numbers[1])
    for text in ("", '{"batch"', '{"batch": 5}', "[]"):
        (tmp_path / "_mergerouter" / f"{numbers[2]}.json").write_text(text)
        with pytest.raises(StreamError, match=r"has damage in its file _mergerouter/.*rebuild"):
            read_state(address, numbers[2])


@pytest.mark.parametrize("name", ["a%b", "a%zz", "a b#c?d*[e]{f}", "ü=+:&;|~"])
def test_a_folder_may_have_odd_characters(name: str, tmp_path: Path) -> None:
    for number in range(2):
        DeltaLog(str(tmp_path / name)).append([], SCHEMA, batch(number))
    assert DeltaLog(str(tmp_path / name)).batch() == batch(1)


@pytest.mark.parametrize("name", ["a%41b", "a%2fb", "a\\b", "a\nb"])
def test_a_folder_that_delta_rs_does_not_find_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot have Delta tables"):
        DeltaLog(str(tmp_path / name))


@pytest.mark.parametrize("partitions", [[], ["bucket"]])
def test_files_that_delta_rs_has_rewritten_are_searched(
    tmp_path: Path, partitions: list[str]
) -> None:
    """delta-rs writes texts with a type that pyarrow does not compare."""
    rows = pa.Table.from_pylist(rows_of(range(20)), SCHEMA)
    write_deltalake(tmp_path, rows, partition_by=partitions)
    DeltaTable(tmp_path).delete("token = '82000003'")
    left = [row for row in rows.to_pylist() if row["token"] != "82000003"]
    token, bucket, event = map(pc.field, ("token", "bucket", "event"))
    conditions: list[tuple[pc.Expression, Callable[[dict[str, Any]], bool]]] = [
        (token <= "82000010", lambda row: row["token"] <= "82000010"),
        (token.isin(["82000003", "82000007"]), lambda row: row["token"] == "82000007"),
        ((bucket == 1) & (event != b"\0"), lambda row: row["bucket"] == 1 < len(row["event"])),
    ]
    for chosen, holds in conditions:
        batches = DeltaLog(str(tmp_path)).rows(["token", "event"], [chosen])
        found = sorted(
            row for each in batches for row in zip(*each.to_pydict().values(), strict=True)
        )
        assert found == [(row["token"], row["event"]) for row in left if holds(row)]


@pytest.mark.parametrize("feature", ["DeletionVectors", "ColumnMapping"])
def test_a_table_whose_files_have_deleted_rows_or_other_names_is_refused(
    feature: str, tmp_path: Path
) -> None:
    """Otherwise the deleted rows would be read, and a compaction would write them again."""
    log = DeltaLog(str(tmp_path))
    log.append_rows(pa.table({"a": [1]}), Batch("q", 0))
    DeltaTable(tmp_path).alter.add_feature(
        getattr(TableFeatures, feature), allow_protocol_versions_increase=True
    )
    for read in (log.reload, lambda: DeltaLog(str(tmp_path))):
        with pytest.raises(StreamError, match=f"DROP FEATURE {feature[0].lower()}{feature[1:]} T"):
            read()


def written_by_spark(folder: Path, version: int, *features: str) -> None:
    """Write a commit with which another program changes the features of a table."""
    read = [feature for feature in features if feature != "checkpointProtection"]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    if read:
        protocol |= {"minReaderVersion": 3, "readerFeatures": read}
    commit = folder / "_delta_log" / f"{version:020}.json"
    commit.write_text(json.dumps({"protocol": protocol}) + "\n")


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping"])
def test_an_older_version_is_read_by_its_own_features(feature: str, tmp_path: Path) -> None:
    DeltaLog(str(tmp_path)).append_rows(pa.table({"a": [1]}), Batch("q", 0))
    written_by_spark(tmp_path, 1, feature)
    written_by_spark(tmp_path, 2)
    log = DeltaLog(str(tmp_path))
    assert log.at(0, TableState()).count() == log.count() == 1
    with pytest.raises(StreamError, match=f"version 1 .* has the feature {feature}"):
        log.at(1, TableState())


def test_a_table_that_keeps_the_history_of_a_dropped_feature_is_not_written(tmp_path: Path) -> None:
    """So Delta Lake 4 drops one by default: the remedy must drop it with its history."""
    DeltaLog(str(tmp_path)).append_rows(pa.table({"a": [1]}), Batch("q", 0))
    written_by_spark(tmp_path, 1, "checkpointProtection")
    log = DeltaLog(str(tmp_path))
    with pytest.raises(StreamError, match=r"DROP FEATURE feature TRUNCATE HISTORY"):
        log.append_rows(pa.table({"a": [2]}), Batch("q", 1))
    written_by_spark(tmp_path, 2)
    DeltaLog(str(tmp_path)).append_rows(pa.table({"a": [2]}), Batch("q", 1))


def test_a_version_with_deleted_files_is_told_from_a_storage_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the former can be made again from bronze."""
    log = DeltaLog(str(tmp_path), ("bucket",))
    for number in range(2):
        parts = written(tmp_path, rows_of([2 * number]))
        log.replace(parts, SCHEMA, TableState(batch=Batch("q", number)), ["0"])
    [first] = log.at(0, TableState()).paths()
    (tmp_path / first).unlink()
    with pytest.raises(DeletedVersionError):
        log.at(0, TableState())

    def fail(*_: Any) -> None:
        raise OSError("the storage does not answer")

    monkeypatch.setattr(table_version, "existing_files", fail)
    with pytest.raises(StreamError, match="does not answer") as raised:
        log.at(0, TableState())
    assert not isinstance(raised.value, DeletedVersionError)


def test_the_state_of_a_newer_version_of_this_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the field that it does not know, it would continue at a wrong place."""
    monkeypatch.setattr(TableState, "document", {"unread2": {}})
    DeltaLog(str(tmp_path)).replace(written(tmp_path, rows_of([1])), SCHEMA, TableState())
    for read in (newest_state, lambda address: DeltaLog(address).state()):
        with pytest.raises(StreamError, match=r"newer version .* field 'unread2'"):
            read(str(tmp_path))
