"""Debezium's messages, made by Spark of a stream's rows and of a snapshot's."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_sink.debezium import to_debezium
from tests.doubles.schema_registry import SchemaRegistry, serving
from tests.spark.conftest import Shop

pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]


def changes(spark: SparkSession, shop: Shop, *, streaming: bool = False, **more: str) -> DataFrame:
    reader = spark.readStream if streaming else spark.read.option("mode", "changes")
    return reader.format("mergerouter").options(**shop.options(**shop.begin, **more)).load()


def decoded(frame: DataFrame) -> list[tuple[str, Any, Any]]:
    return [
        (row.topic, json.loads(row.key), None if row.value is None else json.loads(row.value))
        for row in frame.collect()
    ]


def test_a_query_writes_avro_after_its_registry_accepts_the_schemas(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(3)
    with serving(SchemaRegistry()) as registry:
        rows = changes(spark, shop, streaming=True)
        made = to_debezium(rows, "fulfillment", schema_registry_url=registry.url)
        out = str(tmp_path / "out")
        query = made.writeStream.format("parquet").option("path", out)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        refusal = (409, b'{"error_code": 409, "message": "incompatible"}')
        registry.failures += [refusal] * 100
        with pytest.raises(StreamingQueryException, match="set the subject's compatibility"):
            query.trigger(availableNow=True).start().awaitTermination()
        registry.failures.clear()
        query.trigger(availableNow=True).start().awaitTermination()
        found = spark.read.parquet(out).collect()
        subjects = {each.subject for each in registry.requests}
    topic = f"fulfillment.{shop.database}.orders"
    assert subjects == {f"{topic}-key", f"{topic}-value"}
    documents = []
    for row in found:
        assert row.topic == topic
        key, value = (
            fastavro.schemaless_reader(io.BytesIO(part[5:]), registry.schema_of(part), None)
            for part in (row.key, row.value)
        )
        documents.append(json.loads(value["after"]))
        assert key == {"id": str(documents[-1]["_id"])}
    assert sorted(each["_id"] for each in documents) == [0, 1, 2]


def test_a_stream_has_transactions_in_their_order(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    document = {"_id": 11, "customer": 1}
    shop.orders.insert_one(document)
    with shop.client.start_session() as session, session.start_transaction():
        shop.orders.update_one(document, {"$set": {"n": 1}}, session=session)
        shop.orders.insert_one({"_id": 16, "customer": 6}, session=session)
    shop.orders.update_one(document, {"$set": {"n": 2}})
    rows = changes(spark, shop, streaming=True)
    messages = to_debezium(rows, "fulfillment", transactions=True)
    query = messages.writeStream.format("memory").queryName("ordered")
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query.start().awaitTermination()
    values = [value for _, _, value in decoded(spark.table("ordered"))]
    texts = [value.get("status") or value["op"] for value in values]
    assert texts in (["c", "BEGIN", each, other, "END", "u"] for each, other in ("uc", "cu"))
    assert [value["transaction"]["total_order"] for value in values[2:4]] == [1, 2]
