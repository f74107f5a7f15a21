"""Documents whose names have dots, are numbers, or occur twice: all copies equal the collection.

MERGEROUTER_NAME_SEEDS is the number of seeds, 1 by default.
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import json_util
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from spark_sink.debezium import to_debezium
from spark_sink.events.slices import document_of, elements_of
from spark_sink.jobs.history import restoration
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.tables.current_table import CurrentTable
from spark_sink.verification.differences import differing_fields
from tests.harness.clusters import real_servers_named
from tests.spark.conftest import Shop
from tests.spark.field_names import doubled, write_by_chance
from tests.spark.jobs import NO_DIFFERENCE, differences, rows_of, run_job
from tests.spark.tables import copy_orders, follow

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(900)]

SEEDS = range(int(os.environ.get("MERGEROUTER_NAME_SEEDS", "1")))
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)


def raw_documents(shop: Shop, name: str = "orders") -> dict[Any, bytes]:
    found = shop.client[shop.database].get_collection(name, _RAW).find()
    return {each["_id"]: bytes(each.raw) for each in found}


def raw_rows(spark: SparkSession, table: Path) -> dict[Any, bytes]:
    rows = (
        CurrentTable.existing(str(table)).log.read(spark).where("collection = 'orders'").collect()
    )
    return {json_util.loads(row.key): bytes(row.document) for row in rows}


def unequal(copy: dict[Any, bytes], collection: dict[Any, bytes]) -> dict[Any, Any]:
    """How documents differ, but for the order of their fields."""
    empty = b"\5\0\0\0\0"
    pairs = {key: (copy.get(key, empty), collection[key]) for key in copy | collection}
    found = {key: differing_fields(*pair) for key, pair in pairs.items()}
    return {key: (fields, *map(bson.decode, pairs[key])) for key, fields in found.items() if fields}


@pytest.mark.parametrize("seed", SEEDS)
def test_all_copies_of_documents_with_any_names_equal_the_collection(
    seed: int, spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    job, table, copy = (tmp_path / name for name in ("job", "query", "copy"))
    with_names = shop.client[shop.database].get_collection("orders")

    def write(times: int) -> None:
        for _ in range(times):
            write_by_chance(with_names, chance.randrange(30), chance)

    shop.orders.drop()
    shop.client[shop.database].create_collection(
        "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    start = shop.now()
    write(60)
    for times in (300, 0):
        run_job(spark, shop, job)
        follow(spark, shop, table)
        copy_orders(spark, shop, copy)
        write(times)
    run_job(spark, shop, job)  # which reads again what an event has not told

    collection = raw_documents(shop)
    assert len(collection) > 15
    assert unequal(raw_rows(spark, job / "current"), collection) == {}
    assert unequal(raw_rows(spark, table / "table"), collection) == {}
    assert unequal(raw_copies(shop), collection) == {}
    assert differences(spark, shop, job) == NO_DIFFERENCE
    shutil.rmtree(job / "current")
    restoration.rebuild_table(spark, JobFolder(str(job)))
    assert unequal(raw_rows(spark, job / "current"), collection) == {}
    plain = {key: bson.decode(document) for key, document in collection.items()}
    assert documents_of_messages(spark, shop, start) == plain


def documents_of_messages(
    spark: SparkSession, shop: Shop, start: Timestamp
) -> dict[Any, dict[str, Any]]:
    """What Debezium's messages of all changes since a time say."""
    since = f"{start.time},{start.inc}"
    options = shop.options("orders", mode="changes", startAtOperationTime=since)
    options["fullDocument"] = "required"
    events = spark.read.format("mergerouter").options(**options).load().orderBy("token")
    found = {}
    for message in to_debezium(events.coalesce(1), "shop").collect():
        key, value = json.loads(message.key)["id"], json.loads(message.value or "{}")
        if after := value.get("after"):
            found[json.loads(key)] = json.loads(after)
        else:
            found.pop(json.loads(key), None)
    return found


def raw_copies(shop: Shop) -> dict[Any, bytes]:
    """The documents of the copy, without the token, which is the last field."""
    found = {}
    for key, document in raw_documents(shop, "copy").items():
        fields = elements_of(document)
        found[key] = document_of([each for each in fields if each[0] != b"_token"])
    return found


NAMES_THE_DESCRIPTION = {
    "pipeline": '[{"$match": {"updateDescription.updatedFields.never": {"$exists": false}}}]',
    "snapshotFilters": "{}",
}


ONLY_SERVERS = pytest.mark.skipif(
    not real_servers_named(), reason="the embedded cluster keeps one of two fields with one name"
)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(NAMES_THE_DESCRIPTION, id="described"),
        pytest.param({}, id="doubled", marks=ONLY_SERVERS),
    ],
)
def test_a_document_that_an_event_does_not_tell_is_read_again(
    options: dict[str, str], spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(6)
    orders = shop.orders
    orders.insert_one(doubled(("_id", 7), ("customer", 7), ("a", 1), ("a", 2)))
    orders.update_many({}, {"$set": {"server": {"host": "x"}, "ports": [1]}})
    run_job(spark, shop, tmp_path, options=options)
    if options:
        orders.update_one({"_id": 1, "customer": 1}, {"$set": {"server.port": 80}})
        orders.update_one({"_id": 2, "customer": 2}, {"$push": {"ports": 2}})
        told = "may stand for several fields"
    else:
        orders.update_one({"_id": 7, "customer": 7}, {"$unset": {"a": 1}})
        told = "a occurs twice"
    orders.update_one({"_id": 0, "customer": 0}, {"$set": {"n": 1}})
    run_job(spark, shop, tmp_path, options=options)
    lost = {1, 2} if options else {7}
    found = rows_of(tmp_path, "quarantine")
    assert {json_util.loads(row["key"]) for row in found} == lost
    assert all(told in row["problem"] for row in found)
    # The batches after it have read the documents again, and later events change them.
    assert unequal(raw_rows(spark, tmp_path / "current"), raw_documents(shop)) == {}
    for number in lost:
        orders.update_one({"_id": number, "customer": number}, {"$set": {"n": 3}})
    run_job(spark, shop, tmp_path, options=options)
    assert unequal(raw_rows(spark, tmp_path / "current"), raw_documents(shop)) == {}
    assert len(rows_of(tmp_path, "quarantine")) == len(found)
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE
    shutil.rmtree(tmp_path / "current")
    restoration.rebuild_table(spark, JobFolder(str(tmp_path)))
    assert unequal(raw_rows(spark, tmp_path / "current"), raw_documents(shop)) == {}
