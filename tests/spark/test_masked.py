"""A job with masked fields: no file that it writes has a clear value, and verify compares masks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink import Job
from spark_sink.errors import OptionError
from tests.spark.conftest import Shop
from tests.spark.jobs import NO_DIFFERENCE, differences, rows_of, run_job

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(600)]

CLEAR = "4711 0815"
TABLES = ("bronze", "current", "messages", "transactions")


def with_secret(value: Any) -> Iterator[bytes]:
    """The values, at any depth, that contain the clear text, as bytes or as hex digits."""
    if isinstance(value, dict | list | tuple):
        for each in value.items() if isinstance(value, dict) else value:
            yield from with_secret(each)
        return
    data = value if isinstance(value, bytes) else str(value).encode()
    if CLEAR.encode() in data or CLEAR.encode().hex().encode() in data.lower():
        yield data


def leaks(folder: Path) -> list[tuple[str, list[bytes]]]:
    """The files of a folder that have the clear text."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    assert {".parquet", ".json"} <= {each.suffix for each in files}
    found = []
    for each in files:
        values: list[Any] = [each.read_bytes()]
        if each.suffix == ".parquet":
            values += pq.ParquetFile(each).read().to_pylist()
        found.append((str(each.relative_to(folder)), [*with_secret(values)]))
    return [each for each in found if each[1]]


def change_people(people: Any) -> None:
    """Change the masked fields in every way that an update event describes."""
    people.insert_one({"_id": 3, "mail": f"{CLEAR} 3", "card": {"number": CLEAR}, "tags": [CLEAR]})
    for update in (
        {"$set": {"mail": f"new {CLEAR}", "card.number": [CLEAR, {"a": CLEAR}]}},
        {"$set": {"card.number.1.a": f"{CLEAR} inside", "tags.0": f"{CLEAR} at 0"}},
        {"$push": {"tags": {"$each": [f"{CLEAR} at 1", f"{CLEAR} at 2"]}}},
        {"$push": {"tags": {"$each": [], "$slice": 1}}},
        {"$set": {"items": [{"note": CLEAR, "n": 1}, {"note": CLEAR}]}},
        {"$set": {"items.1.note": f"{CLEAR} again", "items.0.n": 2}},
        {"$unset": {"mail": 1}},
        {"$set": {"card": {"number": f"{CLEAR} new", "kind": "visa"}}},
        [{"$set": {"mail": {"$concat": ["$card.number", " by a pipeline"]}}}],
    ):
        people.update_many({}, update)
    people.replace_one({"_id": 1}, {"mail": f"{CLEAR} replaced", "n": 1})
    people.delete_one({"_id": 2})


@pytest.mark.parametrize("typed", [False, True])
def test_no_file_has_a_clear_value(
    tmp_path: Path, shop: Shop, spark: SparkSession, typed: bool
) -> None:
    salt = tmp_path / "salt"
    salt.write_text("0123456789abcdef")
    database = shop.client[shop.database]
    people = database.create_collection("people", changeStreamPreAndPostImages={"enabled": True})
    cards = {"mail": f"{CLEAR}@x", "card": {"number": CLEAR}, "tags": [CLEAR]}
    people.insert_many([{"_id": number, **cards} for number in range(3)])
    people.insert_one({"_id": 9, "hidden": True, **cards})
    options = {
        "field.masks": "*.people.mail:hash,*.people.card.number:constant=***,"
        "*.people.tags:truncate=2,*.people.items.note:hash",
        "field.masks.salt.file": str(salt),
        "field.renames": "*.people.card:payment",
        "fullDocumentBeforeChange": "whenAvailable",
        "snapshotFilters": json.dumps({f"{shop.database}.people": {"hidden": {"$ne": True}}}),
        "errors.tolerance": "all",
    }
    folder = tmp_path / "job"
    names = [f"{shop.database}.people"]
    given: dict[str, Any] = {"names": names, "options": options, "messages": {"prefix": "p"}}
    given |= {"schema": "infer", "flatten": True} if typed else {}
    run_job(spark, shop, folder, TABLES, **given)
    change_people(people)
    with shop.client.start_session() as session, session.start_transaction():
        people.insert_one({"_id": 5, **cards}, session=session)
    run_job(spark, shop, folder, TABLES, **given)

    assert leaks(folder) == []
    # The update of a document that the snapshot has left out.
    quarantined = DeltaTable(folder / "quarantine").to_pyarrow_table().to_pylist()
    assert {row["key"] for row in quarantined} == {'{"$numberInt": "9"}'}
    assert rows_of(folder, "messages")
    column = "_key" if typed else "key"
    keys = DeltaTable(folder / "current").to_pyarrow_table()[column].to_pylist()
    assert sorted(keys) == [f'{{"$numberInt": "{number}"}}' for number in (0, 1, 3, 5)]
    assert differences(spark, shop, folder) == NO_DIFFERENCE


def test_a_file_has_collections_with_settings_of_their_own(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """Several jobs in one process: `Job` starts, waits, shows and verifies all of them."""
    (tmp_path / "salt").write_text("0123456789abcdef")
    lake, orders, items = tmp_path / "lake", f"{shop.database}.orders", f"{shop.database}.a.items"
    settings = {
        "out": str(lake),
        "uri": shop.uri,
        "trigger": "1 second",
        "salt-file": str(tmp_path / "salt"),
        "collections": {
            orders: {"schema": "infer", "exclude": ["text"]},
            items: {"deletes": "soft", "mask": {"mail": "hash"}},
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.dump(settings, sort_keys=False))
    shop.insert(5)
    with Job(config=str(tmp_path / "job.yaml")).start(spark) as job:
        target = shop.client[shop.database]["a.items"]
        with shop.client.start_session() as session:
            target.insert_many([{"_id": 1, "mail": CLEAR}, {"_id": 2}], session=session)
            target.delete_one({"_id": 2}, session=session)
            assert session.operation_time is not None
            job.wait(session.operation_time)
        assert [each["namespaces"] for each in job.status()] == [[orders], [items]]
        assert {each.count for each in job.verify(spark).values()} == {0}
        with pytest.raises(TimeoutError, match="has reached"):
            job.wait("2100-01-01T00:00:00Z", timeout=1)
        with pytest.raises(OptionError, match="is running"):
            Job(config=str(tmp_path / "job.yaml")).start(spark).wait("now")
    typed = DeltaTable(lake / orders / "current").to_pyarrow_table()
    assert {"_id", "customer"} <= {*typed.column_names}
    assert "text" not in typed.column_names
    plain = DeltaTable(lake / items / "current").to_pyarrow_table().to_pylist()
    # A snapshot after the delete has not read the other document.
    assert [row["key"] for row in plain if not row["_deleted"]] == ['{"$numberInt": "1"}']
    assert leaks(lake) == []
