"""The filters with which a verifier reads documents by their keys."""

from __future__ import annotations

import threading
from pathlib import Path

import bson
import pyarrow as pa
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from deltalake import DeltaTable, write_deltalake

from spark_sink.events.slices import fields_of
from spark_sink.jobs.commands import Rounds
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.rows.extended_json import canonical_json
from spark_sink.snapshot.plan import filter_of
from spark_sink.tables.key_ranges import KEY_RANGE
from spark_sink.verification.collections import difference_of
from spark_sink.verification.slices import VersionRows
from spark_sink.verification.verifier import Verifier
from tests.spark.field_names import doubled
from tests.unit.spark_sink.tables.test_current_table import Stream, apply


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
    pair = {"table": bytes(table.raw), "collection": bytes(collection.raw)}
    found = difference_of({"namespace": "a.b", "key": "1", **pair})
    assert ([] if found is None else found["fields"]) == fields


def test_a_date_beyond_pythons_range_can_be_a_key() -> None:
    for value in (DatetimeMS(2**62), DatetimeMS(-(2**62))):
        key = canonical_json(fields_of(bson.encode({"_id": value}))[b"_id"])
        assert key is not None
        assert filter_of([key]) == {"_id": {"$in": [value]}}


def test_files_of_another_writer_are_read(tmp_path: Path) -> None:
    """delta-rs writes texts with a type of Arrow's that its kernels for strings do not take."""
    stream = Stream(1)
    apply(tmp_path, [stream.change(number) for number in range(5)])
    DeltaTable(tmp_path).delete("key LIKE '%2%'")
    rows = VersionRows(str(tmp_path))
    found = rows.behind("", 100)["place"].to_pylist()
    assert len(found) < 5
    assert rows.find(found[:1]).num_rows == 1


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("has_range", [True, False])
def test_rows_are_read_in_order_though_files_share_a_range(
    name: str, has_range: bool, tmp_path: Path
) -> None:
    """Other writers may put rows into several files of a range, or of none, in any order.

    If the last row is of another collection, no file tells its last key.
    """
    stream = Stream(1)
    events = [stream.change(number) for number in range(9)]
    events[-1]["ns"]["coll"] = name
    apply(tmp_path, events)
    assert not VersionRows(str(tmp_path)).behind(f"shop\0{name}\0~", 1).num_rows
    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by([("key", "descending")])
    halves = rows.slice(0, 4), pa.concat_tables([rows.slice(4), rows.slice(0, 1)])  # one twice
    for half, mode in zip(halves, ("overwrite", "append"), strict=True):
        if not has_range:
            unknown = pa.nulls(len(half), pa.string())
            at = half.column_names.index(KEY_RANGE)
            half = half.set_column(at, KEY_RANGE, unknown)
        write_deltalake(tmp_path, half, mode=mode)
    found, place, read = VersionRows(str(tmp_path)), "", []
    while (some := found.behind(place, 2)).num_rows:
        read += some["key"].to_pylist()
        place = some["place"][-1].as_py()
    ordered = rows.sort_by([("collection", "ascending"), ("key", "ascending")])["key"].to_pylist()
    twice = rows["key"][0].as_py()
    assert read == [key for each in ordered for key in [each] * (1 + (each == twice))]


def test_a_round_that_fails_is_told_and_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = threading.Semaphore(0)

    def fail(_self: Verifier) -> None:
        begun.release()
        raise pa.ArrowNotImplementedError("no kernel")

    monkeypatch.setattr(Verifier, "_verify", fail)
    options = {"uri": "mongodb://router", "database": "shop"}
    with Verifier(JobFolder(str(tmp_path)), options, Rounds(0.01, 1, repair=False)):
        assert all(begun.acquire(timeout=60) for _ in range(2))
    assert "verification: the round has ended: no kernel\n" in capsys.readouterr().err
