"""Typed tables without Spark: columns that grow and widen, soft deletes, and kills between."""

import json
import random
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import bson
import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from deltalake import DeltaTable
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from spark_sink.errors import OptionError
from spark_sink.rows.checksum import Checksum
from spark_sink.rows.typed_documents import InferredDocuments, TypedDocuments
from spark_sink.tables import delta_log
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.table_form import TableForm
from tests.doubles import table_changes
from tests.doubles.table_changes import STEPS, RandomChanges, killed

TOKENS = count(1)
INFER = TableForm(StructType([]), infers=True)
VALUES: tuple[Any, ...] = (
    1, Int64(2), 2.5, Decimal128("3.25"), "text", None, [], [1, {"x": 1}], {"x": 1},
    {"y": {"z": 1}},
)  # fmt: skip


def apply(
    folder: Path, events: Sequence[dict[str, Any]], number: int, form: TableForm = INFER
) -> None:
    table_changes.apply(folder, events, number, table=CurrentTable(str(folder), form=form))


def rows_in(folder: Path) -> dict[int, dict[str, Any]]:
    """The rows by `_id`, after a check of each row against its document, and of three readers."""
    table = DeltaTable(folder)
    found = table.to_pyarrow_table()
    checksum = CurrentTable.existing(str(folder)).state.checksum
    assert Checksum.of(found.drop_columns([KEY_RANGE])) == checksum
    rows = found.to_pylist()
    schema = TableForm.of(DeltaLog(str(folder)).schema).document_schema
    assert schema is not None
    documents = InferredDocuments(schema)
    for row in rows:
        [expected], _ = documents.read_all([row["_document"]])
        again = pa.array([expected], pa.struct([
            each for each in table.to_pyarrow_dataset().schema if each.name in schema.fieldNames()
        ]))  # fmt: skip
        assert {name: row[name] for name in schema.fieldNames()} == again[0].as_py()
    names = [each for each in table.to_pyarrow_dataset().schema.names if each != "_document"]
    by_id = {row["_id"]: [row[name] for name in names] for row in rows}
    assert len(by_id) == len(rows)
    read = polars.scan_delta(str(folder)).select(names).collect().to_dicts()
    assert {row["_id"]: list(row.values()) for row in read} == by_id
    relation = duckdb.from_arrow(table.to_pyarrow_dataset()).project(
        ", ".join(f'"{name}"' for name in names)
    )
    counted = relation.aggregate(", ".join(f'count("{name}")' for name in names))
    filled = tuple(sum(row[name] is not None for row in rows) for name in names)
    assert counted.fetchall() == [filled]
    return {row["_id"]: row for row in rows}


def check(folder: Path, stream: RandomChanges) -> dict[int, dict[str, Any]]:
    rows = rows_in(folder)
    documents = {number: bson.decode(row["_document"]) for number, row in rows.items()}
    assert documents == {number: each for (_, number), each in stream.collections.items()}
    return rows


@pytest.mark.usefixtures("small")
def test_columns_follow_the_documents(tmp_path: Path) -> None:
    stream, folder = RandomChanges(1), tmp_path / "current"
    chance = random.Random(1)
    filler = "x" * 150
    for number in range(5):
        fields = [chance.choice("abcdef") for _ in range(3)]
        # Values of a few kinds at a time, so that columns appear and widen one after the other.
        kinds = VALUES[: 2 + 2 * number]
        events = [
            stream.change(
                chance.randrange(150), t=filler, **{name: chance.choice(kinds) for name in fields}
            )
            for _ in range(60)
        ]
        lost = stream.change(1000)  # an update of a document that nobody has
        del stream.collections["a", 1000], lost["fullDocument"]
        events.append({**lost, "operationType": "update", "updateDescription": {}})
        before = DeltaTable(folder).version() if number else -1
        apply(folder, events, number)
        assert DeltaTable(folder).version() == before + 1  # rows, state and schema in one commit
        check(folder, stream)
        apply(folder, events, number)
        assert DeltaTable(folder).version() == before + 1
    assert not list(folder.glob("_changes/*"))
    files = {str(each) for each in folder.glob("keyRange=*/*")}
    replaced = len(files) - len(DeltaTable(folder).file_uris())
    removed = {each["path"] for each in actions_of(folder, "remove")}
    assert replaced == len(removed)  # no file is left of what was written again
    assert len(list(tmp_path.glob("quarantine/*.parquet"))) == 5


@pytest.mark.usefixtures("small")
def test_readers_skip_files_by_the_key_columns(tmp_path: Path) -> None:
    folder, filler = tmp_path / "current", "x" * 150
    form = replace(INFER, keys=("_id", "region"))

    def insert(*identifiers: Any, region: Any) -> None:
        documents = [{"t": filler, "region": region, "_id": each} for each in identifiers]
        number = DeltaTable(folder).transaction_version("q") or 0 if folder.exists() else 0
        apply(folder, list(map(inserted, documents)), number + 1, form)

    def found(column: str, value: Any) -> tuple[int, int]:
        """The rows that pyarrow finds, and how many files it reads for them."""
        dataset, chosen = DeltaTable(folder).to_pyarrow_dataset(), pc.field(column) == value
        read = polars.scan_delta(str(folder)).filter(polars.col(column) == value).collect()
        rows = dataset.to_table(filter=chosen)
        assert read.height == rows.num_rows
        return rows.num_rows, len(list(dataset.get_fragments(filter=chosen)))

    apply(folder, [], 0, form)  # a table without a document has no columns of keys yet
    insert(*(f"a{number:04}" for number in range(150)), region="eu")
    insert(*(f"b{number:04}" for number in range(150)), region="us")
    table = DeltaTable(folder)
    assert [each.name for each in table.schema().fields][:2] == ["_id", "region"]
    assert len(table.file_uris()) > 2
    assert found("_id", "b0149") == (1, 1)
    rows, read = found("region", "us")
    assert rows == 150
    assert read < len(table.file_uris())
    insert("x" * 5000, region="long" * 2000)  # Parquet has no statistics of these
    assert found("region", "long" * 2000)[0] == 1
    insert("c1", region=Decimal128("1.5"))  # all become texts
    assert found("region", "1.5") == (1, 1)
    insert("c2", region={"x": 1})
    assert found("region", "us")[0] == 150


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("infers", [True, False])
def test_a_batch_writes_few_files_again_where_documents_have_documents(
    tmp_path: Path, infers: bool
) -> None:
    """delta-rs returns no statistics of the columns after a struct."""
    folder, part = tmp_path / "current", StructType().add("t", StringType())
    form = INFER if infers else TableForm(StructType().add("a", part).add("_id", LongType()))
    documents = ({"a": {"t": "x" * 150}, "_id": Int64(number)} for number in range(300))
    apply(folder, [*map(inserted, documents)], 0, form)
    for number, fields in enumerate(({}, {"b": 1}), 1):
        before = set(DeltaTable(folder).file_uris())
        apply(folder, [inserted({"a": {"t": "y"}, "_id": Int64(7), **fields})], number, form)
        assert len(before - set(DeltaTable(folder).file_uris())) == 1
        assert len(before) > 2
    assert rows_in(folder)[7]["a"] == {"t": "y"}


def test_keys_of_a_type_without_statistics_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "current"
    apply(folder, [inserted({"_id": 1})], 0)
    assert "_id" in DeltaTable(folder).metadata().configuration["delta.dataSkippingStatsColumns"]
    apply(folder, [inserted({"_id": Decimal128("2.5")})], 1)
    for value in (1, 2.5):
        chosen = pc.field("_id") == pa.scalar(Decimal(str(value)), pa.decimal128(38, 18))
        assert DeltaTable(folder).to_pyarrow_dataset().to_table(filter=chosen).num_rows == 1
    assert (
        "_id" not in DeltaTable(folder).metadata().configuration["delta.dataSkippingStatsColumns"]
    )
    apply(folder, [inserted({"_id": "text"})], 2)  # all become texts
    assert "_id" in DeltaTable(folder).metadata().configuration["delta.dataSkippingStatsColumns"]
    for text in ("1", "2.5", "text"):
        dataset, chosen = DeltaTable(folder).to_pyarrow_dataset(), pc.field("_id") == text
        assert dataset.to_table(filter=chosen).num_rows == 1
    assert all("_id" in json.loads(each["stats"])["minValues"] for each in adds_of(folder))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("commit", ["_write", "_set_properties"])
def test_keys_have_statistics_also_if_their_first_batch_is_killed(
    commit: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their columns are declared in a commit of their own."""
    monkeypatch.setitem(STEPS, "commit", (DeltaLog, commit))
    folder, event = tmp_path / "current", inserted({"_id": 1})
    apply(folder, [], 0)
    assert killed(monkeypatch, "commit", after, lambda: apply(folder, [event], 1))
    apply(folder, [event], 1)
    apply(folder, [inserted({"_id": 2})], 2)
    assert "_id" in DeltaTable(folder).metadata().configuration["delta.dataSkippingStatsColumns"]


def inserted(document: dict[str, Any]) -> dict[str, Any]:
    token = f"82{1_700_000_000:08X}{next(TOKENS):08X}2B042C0100296E04"
    return {
        "_id": {"_data": token},
        "operationType": "insert",
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": document["_id"]},
        "fullDocument": document,
    }


def adds_of(folder: Path) -> list[dict[str, Any]]:
    """The files of the newest version."""
    paths = {*pa.table(DeltaTable(folder).get_add_actions())["path"].to_pylist()}
    return [each for each in actions_of(folder, "add") if each["path"] in paths]


def actions_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    logs = [each.read_text().splitlines() for each in folder.glob("_delta_log/*.json")]
    actions = [json.loads(line) for log in logs for line in log]
    return [each[kind] for each in actions if kind in each]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("step", "after"), [("files written", False), ("before commit", True)])
def test_a_change_of_the_schema_that_is_killed_at_any_step_is_applied_once(
    step: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "_COMMITS_PER_VACUUM", 1)
    stream, folder = RandomChanges(3), tmp_path / "current"
    apply(folder, [stream.change(number, n=number, t="x" * 200) for number in range(100)], 0)
    before = dict(stream.collections)
    kind = DeltaTable(folder).schema()
    events = [stream.change(number, n=f"{number}", more={"x": 1}) for number in range(5)]
    assert killed(monkeypatch, step, after, lambda: apply(folder, events, 1))
    changed = DeltaTable(folder).schema() != kind
    rows = {row["_id"]: row for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert rows[0]["n"] == ("0" if changed else 0)
    assert bson.decode(rows[99]["_document"]) == before["a", 99]
    apply(folder, events, 1)
    rows = check(folder, stream)
    assert (rows[99]["n"], rows[0]["more"], rows[99]["more"]) == ("99", {"x": 1}, None)


def test_a_given_schema_changes_with_the_next_batch(tmp_path: Path) -> None:
    stream, folder = RandomChanges(1), tmp_path / "current"
    fields = [StructField("_id", LongType()), StructField("n", LongType())]
    apply(folder, [stream.change(1, n=1), stream.change(2, n="x", m="m")], 0,
          TableForm(StructType(fields)))  # fmt: skip
    rows = {each["_id"]: each for each in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert (rows[1]["n"], rows[1]["_rescued"]) == (1, None)
    assert (rows[2]["n"], rows[2]["_rescued"]) == (None, '{"n":"x","m":"m"}')
    more = StructType([*fields, StructField("m", StringType())])
    apply(folder, [stream.change(100_000)], 1, TableForm(more))
    rows = {each["_id"]: each for each in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert (rows[2]["m"], rows[2]["_rescued"]) == ("m", '{"n":"x"}')
    assert TypedDocuments(more).misfits(rows[2]["_document"]) == '{"n":"x"}'
    apply(folder, [stream.change(100_001)], 2, TableForm(StructType(fields)))
    stored = DeltaTable(folder).to_pyarrow_table().drop_columns([KEY_RANGE])
    assert CurrentTable.existing(str(folder)).state.checksum == Checksum.of(stored)
    with pytest.raises(OptionError, match="has other columns"):
        CurrentTable(str(folder), form=TableForm())


@pytest.mark.parametrize(
    ("document", "column", "rescued"),
    [
        ({"a_b": 1, "a": {"b": 2, "c": 3}}, 1, {"a_b": 1, "a": {"b": 2, "c": 3}}),
        ({"a": {"b": 2}, "a_b": 1}, 2, {"a_b": 1, "a": {"b": 2}}),
        ({"a": {"b": None}, "a_b": 1}, None, {"a": {"b": None}, "a_b": 1}),
        ({"a": {"b": 2}, "a_b": {}}, 2, {"a": {"b": 2}, "a_b": {}}),
        ({"a": {"b": 2**60}, "a_b": 1}, None, {"a": {"b": 2**60}, "a_b": 1}),  # nor does it fit
        ({"a": {"b": 2**60}}, None, {"a_b": 2**60}),
        ({"a_b": 1}, 1, None),
    ],
)
@pytest.mark.parametrize("infers", [True, False])
def test_of_fields_with_one_name_none_is_lost(
    document: dict[str, Any], column: Any, rescued: Any, infers: bool, tmp_path: Path
) -> None:
    stream, folder = RandomChanges(1), tmp_path / "current"
    fields = [StructField("_id", LongType()), StructField("a_b", DoubleType())]
    schema = StructType([*fields, StructField("a_c", LongType())])
    form = TableForm(StructType([]) if infers else schema, infers, flattens=True)
    apply(folder, [stream.change(1, a_b=0.5, a={"c": 1}), stream.change(2, **document)], 0, form)
    rows = {row["_id"]: row for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert rows[2]["a_b"] == column
    assert (rows[2]["_rescued"] and json.loads(rows[2]["_rescued"])) == rescued
    # The same field within one document in the document.
    apply(folder, [stream.change(3, x={"a_c": 5, "a": {"c": 6}})], 1, form)
    rows = {row["_id"]: row for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert json.loads(rows[3]["_rescued"])["x"] == {"a_c": 5, "a": {"c": 6}}


def test_the_documented_recipe_keeps_the_documents_own_columns(tmp_path: Path) -> None:
    """Mongoose's `__v` and Spring's `_class` begin with an underscore, as the table's own do."""
    stream, folder = RandomChanges(1), tmp_path / "orders" / "current"
    soft = replace(INFER, keeps_deleted=True)
    apply(folder, [stream.change(1, __v=3, _class="shop.Order", _n=1)], 0, soft)
    page = Path(__file__).parents[4] / "docs" / "spark-reference.md"
    [recipe] = re.findall(r"\n\n((?:    .*\n)+)\n(?=`--flatten`)", page.read_text())
    found: dict[str, Any] = {"DeltaTable": DeltaTable}
    code = textwrap.dedent(recipe).replace("orders/current", str(folder))
    exec(code, found)
    assert found["documents"].to_pylist() == [stream.collections["a", 1]]


@pytest.mark.parametrize("form", [INFER, TableForm()])
def test_soft_deletes_keep_the_row(form: TableForm, tmp_path: Path) -> None:
    stream, folder = RandomChanges(1), tmp_path / "current"
    soft = TableForm(form.document_schema, form.infers, keeps_deleted=True)

    def delete(number: int) -> dict[str, Any]:
        del stream.collections["a", number]
        return stream._event("delete", "a", number)

    def update(number: int) -> dict[str, Any]:
        stream.collections["a", number] |= {"n": 7}
        description = {"updatedFields": {"n": 7}, "removedFields": []}
        return stream._event("update", "a", number, updateDescription=description)

    def rows() -> dict[int, tuple[bool, Any]]:
        name = soft.column("document")
        found = DeltaTable(folder).to_pyarrow_table().to_pylist()
        documents = [bson.decode(each[name]) for each in found]
        return {
            document["_id"]: (each["_deleted"], document.get("n"))
            for each, document in zip(found, documents, strict=True)
        }

    apply(folder, [stream.change(number, n=number) for number in range(1, 7)], 0, soft)
    first = delete(1)
    apply(folder, [first, update(2), delete(2), delete(3), stream.change(3, n=33)], 1, soft)
    expected = {1: (True, 1), 2: (True, 7), 3: (False, 33)} | {n: (False, n) for n in (4, 5, 6)}
    assert rows() == expected
    [gone] = [
        each for each in DeltaTable(folder).to_pyarrow_table().to_pylist()
        if bson.decode(each[soft.column("document")])["_id"] == 1
    ]  # fmt: skip
    assert gone[soft.column("token")] == first["_id"]["_data"]  # the time is that of the delete
    apply(folder, [first], 2, soft)  # again
    assert rows() == expected
    # The end of a snapshot marks what it has not found, and a document may come back.
    del stream.collections["a", 4]
    apply(folder, stream.snapshot(["a"]), 3, soft)
    assert rows() == {**expected, 4: (True, 4)}
    apply(folder, [stream.change(1, n=11), stream.change(4, n=44)], 4, soft)
    assert rows() == {**expected, 1: (False, 11), 4: (False, 44)}
    apply(folder, [stream.drop("a")], 5, soft)
    assert rows() == {}
