"""Comparisons of tables with collections and with the stream: what is read and compared."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from deltalake import DeltaTable, write_deltalake

from spark_sink.errors import StreamError
from spark_sink.events.slices import fields_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.extended_json import canonical_json
from spark_sink.snapshot.plan import SnapshotPlan, filter_of
from spark_sink.snapshot.selections import CollectionPatterns
from spark_sink.snapshot.signal import signal_of
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.key_ranges import KeyRanges
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.table_form import TableForm
from spark_sink.verification.collection_comparison import Compared, Comparison
from spark_sink.verification.comparison_tasks import ComparisonTasks
from spark_sink.verification.differences import differing_fields, document_differences
from spark_sink.verification.rounds import Verifier
from tests.doubles.table_changes import RandomChanges, apply
from tests.harness.until import wait_for
from tests.spark.field_names import doubled


@pytest.mark.parametrize(
    ("table", "collection", "fields"),
    [
        (doubled(("a", 1), ("a", 2)), doubled(("a", 2)), ["a"]),
        (doubled(("a", 1), ("a", 2)), doubled(("a", 2), ("a", 1)), ["a"]),
        (doubled(("a", 1), ("b", 2), ("a", 3)), doubled(("a", 1), ("a", 3), ("b", 2)), []),
        (doubled(("s", doubled(("x", 1), ("x", 2)))), doubled(("s", {"x": 2})), ["s"]),
        (doubled(("s", {"x": 1, "y": [2]})), doubled(("s", {"y": [2], "x": 1})), []),
        (doubled(("s", [1, 2])), doubled(("s", [2, 1])), ["s"]),
        (doubled(("n", 1)), doubled(("n", 1.0), ("m", 1)), ["m", "n"]),
    ],
)
def test_documents_are_compared_as_sequences_of_fields(
    table: RawBSONDocument, collection: RawBSONDocument, fields: list[str]
) -> None:
    assert differing_fields(bytes(table.raw), bytes(collection.raw)) == fields


def test_a_date_beyond_pythons_range_can_be_a_key() -> None:
    for value in (DatetimeMS(2**62), DatetimeMS(-(2**62))):
        key = canonical_json(fields_of(bson.encode({"_id": value}))[b"_id"])
        assert key is not None
        assert filter_of([key]) == {"_id": {"$in": [value]}}


def test_of_a_key_of_several_fields_the_id_is_read() -> None:
    """A typed table's key has the shard key, too: documents are read again by their `_id`s."""
    keys = ['[{"$numberInt":"5"},"eu"]', '[{"$oid":"65a1b2c3d4e5f60718293a4b"},null]']
    identifiers = [5, bson.ObjectId("65a1b2c3d4e5f60718293a4b")]
    assert filter_of(keys) == {"_id": {"$in": identifiers}}


def test_a_key_that_is_no_utf_8_is_not_extra() -> None:
    keys = ['"a"', '"\\ufffd"']
    rows = pa.table({"namespace": ["a.b"] * 2, "key": keys, "token": ["t"] * 2, "table": [b""] * 2})
    [batch] = rows.append_column("collection", pa.nulls(2, pa.binary())).to_batches()
    [found] = document_differences(Scope(), {}, [batch])
    assert found["key"].to_pylist() == ['"a"']


@pytest.mark.parametrize("soft", [False, True])
def test_files_of_another_writer_are_read(tmp_path: Path, soft: bool) -> None:
    """delta-rs writes texts with a type of Arrow's that its kernels for strings do not take."""
    stream = RandomChanges(1)
    table = CurrentTable(str(tmp_path), form=TableForm(keeps_deleted=soft))
    apply(tmp_path, [stream.change(number) for number in range(5)], table=table)
    DeltaTable(tmp_path).delete("key LIKE '%2%'")
    places, _, look = compared(tmp_path, 100)
    assert 0 < len(places) < 5
    key = pa.RecordBatch.from_pylist([{"place": places[0]}])
    assert [rows.num_rows for rows in look.table_rows([key])] == [1]


def compared(folder: Path, most: int) -> tuple[list[str], list[str], ComparisonTasks]:
    """The places of rows that are compared, `most` in a step, those with several rows, the task."""
    table = CurrentTable.existing(str(folder))
    files = table.log.files()
    ranges = KeyRanges.of(files, with_others=True)
    options = parse_options({"uri": "mongodb://none", "database": "shop"})
    look = ComparisonTasks(
        str(folder), table.form, ("_id",), ranges.files(), options, Timestamp(1, 1)
    )
    place, places, doubled = "", list[str](), list[str]()
    while (after := look.tasks_after(ranges, place, most))[1]:
        found = [row for task in after[1] for batch in task() for row in batch.to_pylist()]
        suspects = [row for row in found if row["place"] is not None]
        places += sorted({row["place"] for row in suspects if not row["doubled"]})
        doubled += [row["place"] for row in suspects if row["doubled"]]
        place = max((row["last"] for row in found if row["last"]), default=after[0])
    return places, doubled, look


@pytest.fixture(autouse=True)
def _no_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.verification.comparison_tasks.read_chunks", lambda *_: ())


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("has_range", [True, False])
def test_rows_are_read_in_order_though_files_share_a_range(
    name: str, has_range: bool, tmp_path: Path
) -> None:
    """Other writers may put rows into several files of a range, or of none, in any order.

    If the last row is of another collection, no file tells its last key.
    """
    stream = RandomChanges(1)
    events = [stream.change(number) for number in range(9)]
    events[-1]["ns"]["coll"] = name
    apply(tmp_path, events)
    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by([("key", "descending")])
    halves = rows.slice(0, 4), pa.concat_tables([rows.slice(4), rows.slice(0, 1)])  # one twice
    for half, mode in zip(halves, ("overwrite", "append"), strict=True):
        if not has_range:
            unknown = pa.nulls(len(half), pa.string())
            at = half.column_names.index(KEY_RANGE)
            half = half.set_column(at, KEY_RANGE, unknown)
        write_deltalake(tmp_path, half, mode=mode)
    ordered = rows.sort_by([("collection", "ascending"), ("key", "ascending")])["key"].to_pylist()
    places, doubled, _ = compared(tmp_path, 2)
    assert [place.split("\0")[-1] for place in places] == ordered
    assert [place.split("\0")[-1] for place in doubled] == [rows["key"][0].as_py()]


def test_an_interrupted_comparison_continues_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(tmp_path, [RandomChanges(1).change(1)])
    no_spark: Any = None
    options = {"uri": "mongodb://none", "database": "shop"}
    places, waits, is_gone = list[str](), list[float](), True

    def step(_: Comparison, compared: Compared, *__: object) -> Compared:
        places.append(compared.place)
        if is_gone and len(places) == 3:
            raise StreamError("the router is gone")
        plan = SnapshotPlan(Timestamp(1, 1), ended=True) if len(compared.place) == 3 else None
        rows = compared.rows + 5
        return replace(compared, place=f"{compared.place}a", rows=rows, plan=plan)

    monkeypatch.setattr(RouterClient, "present", lambda _: Timestamp(9, 1))
    monkeypatch.setattr(Comparison, "_step", step)
    monkeypatch.setattr("spark_sink.verification.collection_comparison.tasks_by_cores", lambda _: 4)
    file, kept = tmp_path / "walk.json", (str(tmp_path), "walk.json")
    with pytest.raises(StreamError):
        Comparison(no_spark, str(tmp_path), options).compare(*kept)
    is_gone = False
    every = ["", "a", "aa", "aaa"]
    # With other options, and with another table, it begins again; it leaves nothing at its end.
    for database, expected in (("shop", every[2:]), ("other", every), ("shop", every)):
        capsys.readouterr()
        del places[:], waits[:]
        before = file.read_text()
        found = Comparison(no_spark, str(tmp_path), {**options, "database": database}, rate=0.1)
        last = found.compare(*kept, waits.append)
        assert (places, last.rows, last.through) == (expected, 20, Timestamp(9, 1))
        assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
            "continues the comparison that has begun at 1970-01-01T00:00:09+00:00"
        ] * (expected != every)
        assert [round(seconds) for seconds in waits] == [50] * len(expected)
        assert not file.exists()
        file.write_text(before)
        if database == "other":
            shutil.rmtree(tmp_path / "_delta_log")
            apply(tmp_path, [RandomChanges(1).change(1)])


def test_a_round_that_fails_is_told_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_spark: Any = None
    begun = threading.Semaphore(0)

    def fail(_self: Verifier) -> None:
        begun.release()
        raise pa.ArrowNotImplementedError("no kernel")

    monkeypatch.setattr(Verifier, "_verify", fail)
    monkeypatch.setattr("spark_sink.verification.rounds._RETRY_SECONDS", 0.1)
    options = {"uri": "mongodb://router", "database": "shop"}
    settings = JobSettings(out="x", verify_every="1s", verify_rate=1)
    with Verifier(no_spark, JobFolder(str(tmp_path)), options, settings):
        assert all(begun.acquire(timeout=60) for _ in range(2))
    assert "verification continues in 0 s: no kernel\n" in capsys.readouterr().err


def test_a_round_requests_its_repair_by_one_signal_that_no_query_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query takes two signals with a batch, and refuses those beyond 20,000 characters."""
    oid, plan = "65a1b2c3d4e5f607", SnapshotPlan(Timestamp(5, 1), ended=True)
    no_spark: Any = None
    rows: list[dict[str, Any]] = [
        {"namespace": f"shop.orders{n // 5}", "key": f'{{"$oid":"{oid}{n:08x}"}}', "fields": []}
        for n in range(1000)
    ]
    different = tuple({**row, "difference": "different", "token": None} for row in rows)
    compared = Compared("", "", Timestamp(5, 1), plan=plan, count=1000, first=different)
    comparison = SimpleNamespace(compare=lambda *_: compared)
    monkeypatch.setattr("spark_sink.verification.rounds.Comparison", lambda *_: comparison)
    monkeypatch.setattr("spark_sink.verification.rounds._has_all_documents", lambda _: True)
    options = {"uri": "mongodb://router", "database": "shop"}
    settings = JobSettings.model_validate({"out": "x", "verify-every": "1h", "repair": True})
    folder = JobFolder(str(tmp_path))
    with Verifier(no_spark, folder, options, settings):
        wait_for((tmp_path / "signals").exists, "a signal")
    [path] = (tmp_path / "signals").iterdir()
    document = json_util.loads(path.read_text())
    signal = signal_of(document["id"], document)
    request = CollectionPatterns(signal.collections, signal.conditions)
    assert 10_000 < request.characters < 20_000
    chosen = request.condition("shop.orders1")
    assert chosen == filter_of([row["key"] for row in rows[5:10]])
    now = sum(len(c.document["_id"]["$in"]) for c in signal.conditions)
    assert f"repair: {now} differences now, {1000 - now} in the next" in capsys.readouterr().err
