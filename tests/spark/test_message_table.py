"""A job's table of Debezium's messages, held against `to_debezium` of the job's bronze rows."""

import json
import re
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_sink import read_at
from spark_sink.debezium import to_debezium
from spark_sink.debezium.message_batches import table_options
from spark_sink.errors import OptionError
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import BRONZE, CURRENT, MESSAGES
from spark_sink.tables.delta_log import DeltaLog
from tests.spark.conftest import Shop
from tests.spark.jobs import change_everything, run_job

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(600)]

IMAGES = {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"}
# What depends on the clock: when a message was made, and when a snapshot's document was read.
_CLOCK = re.compile(r'"ts_(ms|us|ns)":\d+')

Message = tuple[str, str, str | None]


def without_clock(topic: str, key: str, value: str | None) -> Message:
    return topic, key, value and _CLOCK.sub("", value)


def written(folder: Path) -> list[Message]:
    """The messages in the table, in the order that it documents."""
    rows = (
        DeltaTable(folder / MESSAGES)
        .to_pyarrow_table()
        .sort_by([("token", "ascending"), ("index", "ascending")])
    )
    columns = (rows[name].to_pylist() for name in ("topic", "key", "value"))
    return [without_clock(*each) for each in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    "messages",
    [
        {"schemas": "true", "tombstones": "false", "naming": "unicode"},
        {"unwrap": json.dumps({"add.fields": "op"})},
    ],
    ids=["schemas", "unwrap"],
)
def test_the_table_has_the_messages_of_bronze(
    messages: dict[str, str], tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    shop.insert(5)
    shop.client[shop.database].command(
        "collMod", "orders", changeStreamPreAndPostImages={"enabled": True}
    )
    messages = {"prefix": "shop-1", **messages}
    run_job(spark, shop, tmp_path, (BRONZE, MESSAGES), options=IMAGES, messages=messages)
    change_everything(shop)
    run_job(spark, shop, tmp_path, (BRONZE, MESSAGES), options=IMAGES, messages=messages)
    rows = DeltaLog(JobFolder(str(tmp_path)).table(BRONZE)).read(spark).orderBy("token")
    options = table_options(messages)
    given = {name: getattr(options, name) for name in ("schemas", "tombstones", "naming")}
    if "unwrap" in messages:
        given = {"unwrap": json.loads(messages["unwrap"])}
    expected = to_debezium(rows.coalesce(1), "shop-1", **given).collect()
    found = written(tmp_path)
    assert found == [without_clock(*row) for row in expected]
    assert len({topic for topic, _, _ in found}) == 2
    assert len(found) > 5 + 7 * 3 + 3 * 2


def test_messages_and_documents_are_read_as_of_one_time(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """Without bronze the current table has the events of whole batches."""
    shop.insert(5)
    tables = (MESSAGES, CURRENT)
    run_job(spark, shop, tmp_path, tables, messages={"prefix": "p"})
    shop.insert(5)
    run_job(spark, shop, tmp_path, tables, messages={"prefix": "p"})
    shop.insert(1)
    time = shop.now()
    shop.insert(1)  # in the same batch
    for _ in range(2):
        run_job(spark, shop, tmp_path, tables, messages={"prefix": "p"})
    found = read_at(spark, str(tmp_path), f"{time.time},{time.inc}")
    assert found[CURRENT].count() == 10
    assert found[MESSAGES].select("key").distinct().count() == 10


def test_the_properties_of_a_transform_may_be_corrected(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """A document that is no event of an outbox stops the job, with this remedy."""
    prefix = {"prefix": "p"}
    run_job(spark, shop, tmp_path, (MESSAGES,), messages={**prefix, "outbox": "{}"})
    made = {"aggregateid": 1, "payload": "made", "kind": "order"}
    shop.orders.insert_one({"_id": 1, "customer": 1, **made})
    with pytest.raises(StreamingQueryException, match="Correct the options of outbox"):
        run_job(spark, shop, tmp_path, (MESSAGES,), messages={**prefix, "outbox": "{}"})
    corrected = json.dumps({"route.by.field": "kind"})
    run_job(spark, shop, tmp_path, (MESSAGES,), messages={**prefix, "outbox": corrected})
    assert written(tmp_path) == [("outbox.event.order", "1", '"made"')]
    with pytest.raises(OptionError, match="has --message outbox, prefix=p, not prefix=p: start"):
        run_job(spark, shop, tmp_path, (MESSAGES,), messages=prefix)
