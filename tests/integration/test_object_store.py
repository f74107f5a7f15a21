"""Tables on an object store, which fails at each step of a batch and comes back."""

from collections.abc import Iterator
from pathlib import Path

import bson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_sink.dataclass_json import from_json, to_json
from spark_sink.errors import StreamError
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage
from spark_sink.tables.table_state import Batch, TableState
from tests.doubles.table_changes import RandomChanges, change_rows
from tests.doubles.two_starts import check_two_starts, pause_starts
from tests.harness.object_store import BUCKET, ObjectStore, object_store

pytest.importorskip("moto", reason="it stands in for S3")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store() as store:
        for name, text in store.environment.items():
            monkeypatch.setenv(name, text)
        yield store


def test_a_batch_that_meets_an_outage_is_written_once(store: ObjectStore) -> None:
    address = f"s3://{BUCKET}/job/current"
    stream = RandomChanges(1)
    for number, failing in enumerate([(), ("stage", "apply")]):
        rows = change_rows(stream.changes(30))
        for step in (*failing, ""):  # the step before which the store fails
            try:
                stage = ChangeStage(address)
                stage.add(rows)
                if step == "stage":
                    store.stop()
                report = from_json(ChangeReport, to_json(stage.close()))
                table = CurrentTable(address)
                if step == "apply":
                    store.stop()
                table.apply_staged(None, Upsert(report, Batch("q", number)))
                assert not step
            except (OSError, StreamError):
                assert step
                store.start()
    found = DeltaTable(address).to_pyarrow_table().to_pylist()
    documents = {(row["collection"], bson.decode(row["document"])["_id"]): row for row in found}
    assert len(documents) == len(found)
    assert {k: bson.decode(row["document"]) for k, row in documents.items()} == stream.collections
    assert [each["mergerouter"]["batch"]["number"] for each in DeltaTable(address).history()] == [
        1,
        0,
    ]


@pytest.mark.usefixtures("store")
def test_of_two_starts_on_a_store_no_event_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_starts(monkeypatch)
    check_two_starts(f"s3://{BUCKET}/job", tmp_path, seed=0)


def test_of_two_writers_to_a_store_one_fails(store: ObjectStore) -> None:
    address = f"s3://{BUCKET}/job/bronze"
    first = Batch("q", 0)
    DeltaLog(address).append_rows(pa.table({"token": ["a"]}), first)
    one, another = DeltaLog(address), DeltaLog(address)
    one.replace([], pa.schema([("token", pa.string())]), TableState(complete_from="b", batch=first))
    with pytest.raises(StreamError, match="written by another query"):
        another.replace(
            [], pa.schema([("token", pa.string())]), TableState(complete_from="c", batch=first)
        )
    another = DeltaLog(address.replace("s3://", "s3a://"))
    assert another.state() == TableState(complete_from="b", batch=first)
    assert another.count() == 1
