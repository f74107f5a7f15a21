"""Typed documents in a running Spark, and what its plans show."""

import json
from decimal import Decimal

import pytest
from bson.decimal128 import Decimal128
from pyspark.sql import SparkSession
from pyspark.sql.functions import count
from pyspark.sql.types import DecimalType, StructType

from spark_sink import infer_schema, parse_documents
from spark_sink.errors import OptionError
from tests.spark.conftest import Shop

pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]

SCHEMA = "_id BIGINT, total DECIMAL(10,2), `at` STRUCT<x INT, y: INT>, tags ARRAY<STRING>"


def write(shop: Shop) -> None:
    items = shop.client[shop.database].items
    items.insert_one(
        {"_id": 1, "total": Decimal128("1.5"), "at": {"x": 1, "y": 2}, "tags": ["a", None]}
    )
    items.insert_one({"_id": 2, "total": "much"})
    items.insert_one({"_id": 3, "extra": True})


def typed(shop: Shop, schema: str, **options: str) -> dict[str, str]:
    return shop.options("items", documents="typed", documentSchema=schema, **options)


def test_a_stream_has_structs_and_counts_what_does_not_fit(
    spark: SparkSession, shop: Shop, capfd: pytest.CaptureFixture[str]
) -> None:
    write(shop)
    options = typed(shop, SCHEMA, **shop.begin)
    options["uri"] += "?appName=s3cret"
    frame = spark.readStream.format("mergerouter").options(**options).load()
    kind = frame.schema["fullDocument"].dataType
    assert isinstance(kind, StructType)
    assert kind["total"].dataType == DecimalType(10, 2)
    observed = frame.observe("documents", count("_rescued").alias("rescued"))
    writer = observed.writeStream.format("memory").queryName("typed").trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    rows = {row.fullDocument._id: row for row in spark.table("typed").collect()}
    assert rows[1].fullDocument.asDict(recursive=True) == {
        "_id": 1, "total": Decimal("1.50"), "at": {"x": 1, "y": 2}, "tags": ["a", None],
    }  # fmt: skip
    assert rows[1]._rescued is None
    assert rows[2].fullDocument.total is None
    rescued = {number: json.loads(rows[number]._rescued) for number in (2, 3)}
    assert rescued == {
        2: {"fullDocument": {"_id": 2, "total": "much"}},
        3: {"fullDocument": {"_id": 3, "extra": True}},
    }
    counts = [each["observedMetrics"]["documents"]["rescued"] for each in query.recentProgress]
    assert sum(counts) == 2

    # The connection string is not in the plans, nor in what Spark reports.
    frame.explain(extended=True)
    query.explain(extended=True)
    plans = capfd.readouterr().out
    assert "Physical Plan" in plans
    assert "s3cret" not in plans
    assert "s3cret" not in str(query.recentProgress)


def test_rows_of_json_are_parsed_later(spark: SparkSession, shop: Shop) -> None:
    write(shop)
    options = shop.options("items", mode="snapshot")
    rows = spark.read.format("mergerouter").options(**options).load()
    parsed = parse_documents(rows, SCHEMA)
    found = {row.fullDocument._id: row for row in parsed.collect()}
    stored = {json.loads(row.fullDocument)["_id"]: row for row in rows.collect()}
    assert {number: row.documentKey for number, row in found.items()} == {
        number: row.documentKey for number, row in stored.items()
    }
    assert found[1].fullDocument.total == Decimal("1.50")
    assert [found[number]._rescued is None for number in (1, 2, 3)] == [True, False, False]
    only_known = parse_documents(rows, SCHEMA, unknown_fields="ignore")
    assert only_known.where("_rescued IS NOT NULL").select("fullDocument._id").collect() == [(2,)]
    with pytest.raises(OptionError, match="no column event"):
        parse_documents(rows.drop("event"), SCHEMA)
    with pytest.raises(OptionError, match="cannot be read as float"):
        parse_documents(rows, "n FLOAT")


def test_a_schema_is_inferred_from_a_collection(spark: SparkSession, shop: Shop) -> None:
    write(shop)
    schema = infer_schema(**shop.options("items"))
    assert {field.name: field.dataType.simpleString() for field in schema} == {
        "_id": "bigint",
        "total": schema["total"].dataType.simpleString(),
        "at": "struct<x:bigint,y:bigint>",
        "tags": "array<string>",
        "extra": "boolean",
    }
    frame = spark.read.format("mergerouter").options(**typed(shop, schema.json(), mode="snapshot"))
    rows = frame.load().select("_rescued").collect()
    assert sum(row._rescued is None for row in rows) == 2  # of two types of total, one does not fit
    with pytest.raises(OptionError, match="give 'database' and 'collection'"):
        infer_schema(**shop.options())
    with pytest.raises(OptionError, match=r"has no documents"):
        infer_schema(**shop.options("nothing"))
