"""Rows written back to MongoDB: each change once, however often a batch is repeated."""

from contextlib import closing
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import bson
import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from pymongo.monitoring import CommandListener
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.mongodb_sink import writers
from spark_sink.mongodb_sink.changes import Change, WriteOptions, change_of_event
from spark_sink.mongodb_sink.writers import DocumentWriter, MergerouterBatchWriter, RowWriter
from spark_sink.stream.router_client import mongo_client
from tests.doubles.event_history import event_row
from tests.spark.conftest import Shop
from tests.spark.jobs import forget_last_commit
from tests.spark.tables import change_at_random, copy_orders

pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]


def copied(shop: Shop, *, keeps_tokens: bool = False) -> dict[Any, dict[str, Any]]:
    """The documents of the copy, without their tokens."""
    documents = shop.client[shop.database].copy.find()
    found = {each["_id"]: each for each in documents}
    if not keeps_tokens:
        for document in found.values():
            del document["_token"]
    return found


def orders(shop: Shop) -> dict[Any, dict[str, Any]]:
    return {each["_id"]: each for each in shop.orders.find()}


def test_a_copy_equals_its_collection_and_repeated_batches_change_nothing(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(60)
    copy_orders(spark, shop, tmp_path / "checkpoint")
    assert copied(shop) == orders(shop)
    change_at_random(shop, 3, 150)
    copy_orders(spark, shop, tmp_path / "checkpoint")
    assert copied(shop) == orders(shop)

    # As if killed before the last batches were committed, and then once more.
    before = copied(shop, keeps_tokens=True)
    for _ in range(2):
        last = forget_last_commit(tmp_path)
        copy_orders(spark, shop, tmp_path / "checkpoint")
        assert (tmp_path / "checkpoint" / "commits" / str(last)).exists()
        assert copied(shop, keeps_tokens=True) == before


def test_an_update_of_a_missing_document_fails(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(3)
    copy_orders(spark, shop, tmp_path / "checkpoint")
    shop.client[shop.database].copy.delete_one({"_id": 1})
    shop.orders.update_many({}, {"$set": {"n": 1}})
    with pytest.raises(StreamingQueryException) as caught:
        copy_orders(spark, shop, tmp_path / "checkpoint")
    message = cause_of(caught.value)
    assert message.startswith(f"{shop.database}.copy does not contain a changed document")
    assert "Traceback" not in str(caught.value)
    copy_orders(spark, shop, tmp_path / "checkpoint", missing="ignore")
    assert set(copied(shop)) == {0, 2}
    assert all(each["n"] == 1 for each in copied(shop).values())


def frame(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(
        list(rows),
        "_id int, token long, op string, day date, price decimal(9,2), tags array<int>, "
        "sizes map<string,int>",
    )


def test_rows_of_other_origin_are_written_by_key_and_token(spark: SparkSession, shop: Shop) -> None:
    def write(*rows: tuple[Any, ...]) -> None:
        writer = frame(spark, *rows).write.format("mergerouter").mode("append")
        writer.options(**shop.options("copy")).save()

    day, price = date(2026, 1, 31), Decimal("12.50")
    own = day, price, [1], {"a": 1}
    write((1, 5, None, *own), (2, 5, None, *own), (3, 5, None, *own))
    write((1, 4, None, day, price, [9], {}), (2, 6, "d", *[None] * 4), (3, 4, "d", *[None] * 4))
    found = copied(shop)
    assert set(found) == {1, 3}  # what is older than a document changes nothing
    assert (found[1]["tags"], found[1]["sizes"]) == ([1], {"a": 1})
    assert found[1]["price"] == Decimal128("12.50")
    assert found[1]["day"].isoformat() == "2026-01-31T00:00:00"
    with pytest.raises(PySparkException) as caught:
        frame(spark).select("_id").write.format("mergerouter").mode("append").options(
            **shop.options("copy")
        ).save()
    assert "the sink requires the column token" in str(caught.value)


def test_a_document_that_moves_to_another_shard_is_not_deleted(shop: Shop) -> None:
    """Its insert may be a tick before its delete, and may have removed the shard key's field."""
    options = WriteOptions(shop.uri, shop.database, "copy")
    former, text = {"_id": 1, "customer": 1}, {"updatedFields": {"text": "x"}}
    changed = event_row("update", 3, documentKey={"_id": 1}, updateDescription=text)
    left = event_row("delete", 4, documentKey=former, txnNumber=1)

    def write(*rows: dict[str, Any]) -> dict[Any, dict[str, Any]]:
        with closing(DocumentWriter(options)) as writer:
            writer.write(filter(None, (change_of_event(each, options) for each in rows)))
        return copied(shop)

    for now in ({"_id": 1}, {"_id": 1, "customer": 2}):
        moved = event_row("insert", 2, documentKey=now, fullDocument=now, txnNumber=1)
        for _ in range(2):
            assert write(left, moved, changed) == {1: {**now, "text": "x"}}
        shop.client[shop.database].copy.drop()
    assert write(changed, left) == {}  # a repeated batch, without the document
    known = {"_id": 1, "region": 5}  # which the source leaves out
    write(moved)
    later = event_row("update", 5, documentKey=known, updateDescription=text)
    assert write(later)[1]["text"] == "x"
    assert write(event_row("delete", 6, documentKey=known)) == {}


def test_a_deleted_document_stays_deleted_whichever_task_writes_first(shop: Shop) -> None:
    options = WriteOptions(shop.uri, shop.database, "copy")
    writer = MergerouterBatchWriter(StructType.fromDDL("_id int, token long, op string"), options)

    def written(*rows: tuple[int, int, str | None]) -> WriterCommitMessage:
        table = [dict(zip(("_id", "token", "op"), row, strict=True)) for row in rows]
        return writer.write(iter([pa.RecordBatch.from_pylist(table)]))

    later = written((1, 2, "d"), (2, 2, "d"), (2, 3, None))
    writer.commit([later, written((1, 1, None), (2, 1, None), (3, 1, None))])
    assert set(copied(shop)) == {2, 3}


def test_documents_are_read_from_the_primary(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may not have the last write yet."""
    requests = Mock(CommandListener)
    listened = partial(mongo_client, event_listeners=[requests])
    monkeypatch.setattr(writers, "mongo_client", listened)
    uri = f"{shop.uri.rstrip('/')}/?readPreference=secondaryPreferred"
    where = (shop.database, "copy"), {"_id": 1}
    with closing(DocumentWriter(WriteOptions(uri))) as writer:
        writer.write([Change(*where, "1", bson.encode({"_id": 1, "a": [1]}))])
        removed = bson.encode({"removedFields": ["a"]})
        writer.write([Change(*where, "2", description=removed)])
    assert copied(shop) == {1: {"_id": 1}}
    commands = [call.args[0].command for call in requests.started.call_args_list]
    found = [command for command in commands if "find" in command]
    assert found
    assert not any("$readPreference" in command for command in found)


def test_keys_of_events_have_the_id() -> None:
    """A delete shows no other field of a document, but for its shard key."""
    options = WriteOptions("mongodb://x", keys=("sku",))
    RowWriter(StructType.fromDDL("token string, sku string"), options)
    with pytest.raises(OptionError, match="add _id"):
        RowWriter(StructType.fromDDL("token string, event binary"), options)
