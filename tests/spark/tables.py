"""Current tables that a query keeps, random writes to their collections, and damage to them."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import bson
import pandas
import pyarrow as pa
import pymongo
from bson import json_util
from deltalake import DeltaTable, write_deltalake
from pymongo.errors import WriteError
from pyspark.sql import DataFrame, SparkSession

from spark_sink import apply_changes
from spark_sink.tables.current_table import CurrentTable
from tests.harness.real_cluster import RealCluster
from tests.spark.conftest import Shop


def follow(spark: SparkSession, shop: Shop, folder: Path, **options: object) -> None:
    """One run of a query into the current table, up to the present."""
    given = shop.options(**{"snapshotMode": "initial", **options})
    events = spark.readStream.format("mergerouter").options(**given).load()
    writer = apply_changes(events, str(folder / "table"))
    assert writer is not None
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def table_of(spark: SparkSession, folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return documents_in(CurrentTable.existing(str(folder / "table")).log.read(spark))


def documents_in(table: DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    rows = table.collect()
    found = {(row.collection, row.key): bson.decode(bytes(row.document)) for row in rows}
    assert len(found) == len(rows)
    for row in rows:
        assert json_util.loads(row.fullDocument)["_id"] == json_util.loads(row.key)
    return found


def collections_of(shop: Shop) -> dict[tuple[str, str], dict[str, Any]]:
    database = shop.client[shop.database]
    return {
        (name, json_util.dumps(each["_id"], json_options=json_util.CANONICAL_JSON_OPTIONS)): each
        for name in database.list_collection_names()
        for each in database[name].find()
    }


def damage(target: str, change: Callable[[pandas.DataFrame], pandas.DataFrame]) -> None:
    """Change the rows of a current table behind its back, as any writer of Delta tables can."""
    table = DeltaTable(target)
    rows = change(table.to_pandas())
    kept = pa.Table.from_pandas(rows, pa.schema(table.schema()), preserve_index=False)
    write_deltalake(table, kept, mode="overwrite")


def change_at_random(shop: Shop, seed: int, count: int) -> None:
    """Random writes, of which many have descriptions that are hard to apply."""
    chance = random.Random(seed)
    for _ in range(count):
        one = {"_id": chance.randrange(shop.written + 5)}
        one["customer"] = one["_id"] % 10
        with suppress(WriteError):  # a path of an update may lead through a value of another type
            change(shop, one, chance)


def change(shop: Shop, one: dict[str, Any], chance: random.Random) -> None:
    orders = shop.orders
    match chance.randrange(8):
        case 0:
            orders.delete_one(one)
        case 1:
            orders.replace_one(one, {**one, "list": [1, 2, {"x": [3, 4]}]}, upsert=True)
        case 2:
            orders.update_one(one, {"$set": {"list.1": chance.random(), "deep.er": 1}})
        case 3:
            orders.update_one(one, {"$unset": {"text": 1}, "$inc": {"n": 1}})
        case 4:
            orders.update_one(one, [{"$set": {"list": {"$slice": ["$list", 2]}}}])
        case 5:
            orders.update_one(one, {"$push": {"list": chance.random()}})
        case 6:
            orders.update_one(one, {"$set": {"list": list(range(chance.randrange(9)))}})
        case 7:
            with shop.client.start_session() as session, session.start_transaction():
                orders.delete_one(one, session=session)
                orders.insert_one({**one, "again": True}, session=session)


def copy_orders(spark: SparkSession, shop: Shop, checkpoint: Path, **options: str) -> None:
    """Copy the orders up to the present."""
    source = {"snapshotMode": "initial", "snapshotChunkRows": "20"}
    source |= {name: text for name, text in options.items() if name in ("fullDocument",)}
    sink = {name: text for name, text in options.items() if name not in source}
    events = spark.readStream.format("mergerouter").options(**shop.options("orders", **source))
    writer = events.load().writeStream.format("mergerouter")
    writer = writer.options(uri=shop.uri, collection="copy", **sink)
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def reshard(cluster: RealCluster, shop: Shop, key: Mapping[str, int]) -> None:
    """Reshard the orders, without the five minutes that this takes at least by default."""
    with pymongo.MongoClient(cluster.configdb.partition("/")[2]) as config:
        config.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
    namespace = f"{shop.database}.orders"
    shop.client.admin.command("reshardCollection", namespace, key=key, numInitialChunks=1)
