"""What cannot be read: documents that drivers cannot decode, events that oplogs no longer have."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson.raw_bson import RawBSONDocument
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_sink.errors import HistoryLostError
from spark_sink.jobs.history.left_out_events import replace_lost_batch, seek
from spark_sink.jobs.history.newest_batch import restore_checkpoint
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import JobQuery
from spark_sink.jobs.table_commits import take_over
from spark_sink.options.scope import namespace_options
from spark_sink.source.offsets import Offset
from spark_sink.tables.current_table import CurrentTable
from tests.doubles.table_changes import with_field
from tests.harness.clusters import on_real_servers, start_real_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings
from tests.spark.batches import batches
from tests.spark.conftest import Shop
from tests.spark.jobs import NO_DIFFERENCE, TABLES, differences, rows_of, run_job

pytestmark = [
    pytest.mark.xdist_group("spark_queries"),
    pytest.mark.timeout(600),
    on_real_servers("documents that it does not decode, nor oplogs that roll over"),
]

TOLERANT = {"errors.tolerance": "all"}


def order_with(number: int, field: bytes) -> RawBSONDocument:
    return with_field({"_id": number, "customer": number % 10}, field)


def nested(depth: int) -> bytes:
    """The field d with documents in documents."""
    inner = b"\x05\0\0\0\0"
    for _ in range(depth):
        inner = struct.pack("<i", len(inner) + 8) + b"\x03d\0" + inner + b"\0"
    return b"\x03d\0" + inner


UNREADABLE = b"\x05b\0" + struct.pack("<i", 2) + b"\x02ab"  # subtype 2 without its inner size
ODD = (
    b"\x02s\0\x03\0\0\0\xff\xfe\0",  # no UTF-8
    b"\x10n\xff\0\x01\0\0\0",
    b"\x10a\0\x01\0\0\0\x02a\0\x02\0\0\0x\0",  # a field twice
    b"\x09d\0" + struct.pack("<q", 2**63 - 1),
    b"\x04a\0\x13\0\0\0\x105\0\x01\0\0\0\x10x\0\x02\0\0\0\0",  # other names than 0 and 1
    nested(170),
)
"""Fields that readers seldom expect, and can read."""


def current(spark: SparkSession, folder: Path) -> set[int]:
    """The numbers of the documents in the current table."""
    rows = CurrentTable.existing(str(folder / "current")).log.read(spark).select("key").collect()
    return {int(json.loads(row.key)["$numberInt"]) for row in rows}


def insert_odd(shop: Shop) -> None:
    for field in ODD:
        shop.orders.insert_one(order_with(shop.written, field))  # type: ignore[arg-type]
        shop.written += 1


def insert_unreadable(shop: Shop) -> int:
    shop.orders.insert_one(order_with(shop.written, UNREADABLE))  # type: ignore[arg-type]
    shop.written += 1
    return shop.written - 1


def test_an_event_that_cannot_be_read_goes_to_the_quarantine(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    insert_odd(shop)  # a snapshot reads them
    run_job(spark, shop, tmp_path)
    insert_odd(shop)
    number = insert_unreadable(shop)
    shop.insert(3)
    with pytest.raises(StreamingQueryException) as failed:
        run_job(spark, shop, tmp_path)
    told = str(failed.value)
    assert f"an event of {shop.database}.orders cannot be read: set errors.tolerance=all" in told
    assert f'"_id": {{"$numberInt": "{number}"}}' in told
    assert ", token 82" in told

    run_job(spark, shop, tmp_path, options=TOLERANT)  # the batch that has failed
    run_job(spark, shop, tmp_path, options=TOLERANT)
    [quarantined] = DeltaTable(tmp_path / "quarantine").to_pyarrow_table().to_pylist()
    assert "cannot be read" in quarantined["problem"]
    [row] = [each for each in rows_of(tmp_path) if each["token"] == quarantined["token"]]
    assert row["operationType"] == "insert"
    rows = DeltaTable(tmp_path / "bronze").to_pyarrow_table().to_pylist()
    [bronze] = [each for each in rows if each["token"] == quarantined["token"]]
    assert (bronze["op"], bronze["fullDocument"]) == (None, None)
    assert bronze["event"] == quarantined["event"]
    assert RawBSONDocument(bronze["event"])["_id"]["_data"] == quarantined["token"]
    assert current(spark, tmp_path) == set(range(shop.written)) - {number}

    # A later event with the whole document brings it back, an update of it does not.
    shop.orders.update_one({"_id": number}, {"$set": {"n": 1}})
    run_job(spark, shop, tmp_path, options=TOLERANT)
    assert number not in current(spark, tmp_path)
    shop.orders.replace_one({"_id": number}, {"_id": number, "customer": number % 10})
    run_job(spark, shop, tmp_path, options=TOLERANT)
    assert number in current(spark, tmp_path)
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE


def test_rows_from_before_large_events_are_split_are_verified(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """Servers of 6.0 give the events of both streams other tokens."""
    run_job(spark, shop, tmp_path)
    shop.insert(5)
    run_job(spark, shop, tmp_path)
    shop.insert(5)
    run_job(spark, shop, tmp_path, options=TOLERANT)
    run_job(spark, shop, tmp_path, options=TOLERANT)
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE


def insert_at_once(shop: Shop, *numbers: int) -> None:
    with shop.client.start_session() as session, session.start_transaction():
        for number in numbers:
            shop.orders.insert_one({"_id": number, "customer": number % 10}, session=session)


def start(spark: SparkSession, shop: Shop, folder: Path, mode: str) -> None:
    """Start the job as its command does, up to the present."""
    where, names = JobFolder(str(folder)), (shop.database,)
    options = {**namespace_options(names), "snapshotMode": mode}
    record = JobRecord(names, options, TABLES, messages={"prefix": "p"})
    epoch = take_over(where)
    newest = restore_checkpoint(where)
    where.begin(record)
    replace_lost_batch(where, shop.uri, newest, 0)
    JobQuery(where, record, shop.uri, epoch=epoch).start(spark, None).awaitTermination()


@pytest.mark.timeout(1200)
def test_a_batch_in_progress_whose_events_are_lost_is_left_out(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ServerSettings(noop_interval=1, oplog_mb=2, checkpoint_seconds=1)
    with (
        start_real_cluster(2, settings=small) as cluster,
        start_router(cluster.configdb, upstream=cluster.mongos_uri) as router,
        start_router(cluster.configdb, upstream=cluster.mongos_uri) as fresh,  # no old log
    ):
        shop = Shop(router.uri, "shop", cluster.shards, cluster.mongos_uri)
        shop.insert(40)
        before, after = tmp_path / "before", tmp_path / "after"
        for first in (92, 93):  # the snapshot, and a batch of the stream
            start(spark, shop, before, "when_needed")
            insert_at_once(shop, first, first + 5)
        shutil.copytree(before, after)
        last = JobFolder(str(before)).checkpoint.batches()[-1].number
        shop.insert(10)
        shop.orders.update_many({}, {"$inc": {"n": 1}})
        insert_at_once(shop, 91, 96)
        start(spark, shop, after, "when_needed")
        # Jobs that were killed in the batch, when some of the tables had it.
        killed = {}
        for count, tables in enumerate((("bronze",), ("bronze", "messages", "current"))):
            killed[tables] = tmp_path / str(count)
            shutil.copytree(before, killed[tables])
            for name in tables:
                shutil.rmtree(killed[tables] / name)
                shutil.copytree(after / name, killed[tables] / name)
            shutil.copy(
                after / f"checkpoint/offsets/{last + 1}", killed[tables] / "checkpoint/offsets"
            )
        asking = tmp_path / "asking"
        shutil.copytree(killed["bronze",], asking)
        cluster.roll_over()
        shop.uri = fresh.uri
        shop.insert(5)
        shop.orders.delete_many({"_id": {"$lt": 7}})
        for tables, folder in killed.items():
            start(spark, shop, folder, "when_needed")
            told = capsys.readouterr().err
            assert told.count("the oplogs have lost events of the batch in progress") == 1
            shop.insert(3)
            start(spark, shop, folder, "when_needed")
            assert differences(spark, shop, folder) == NO_DIFFERENCE, tables

        # By default the job fails until a user has set it to the present.
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="job seek"):
                start(spark, shop, asking, "initial")
        now = shop.now()
        seek(JobFolder(str(asking)), f"{now.time},{now.inc}")
        start(spark, shop, asking, "initial")
        shop.insert(3)
        start(spark, shop, asking, "initial")
        assert differences(spark, shop, asking) == NO_DIFFERENCE


def test_oplogs_that_roll_over_are_told_and_no_event_is_lost_in_silence() -> None:
    small = ServerSettings(noop_interval=1, oplog_mb=2, checkpoint_seconds=1)
    with (
        start_real_cluster(1, settings=small) as cluster,
        start_router(cluster.configdb, upstream=cluster.mongos_uri) as router,
        pymongo.MongoClient[dict[str, Any]](cluster.mongos_uri) as client,
    ):
        orders = client.shop.orders
        orders.insert_many([{"_id": number} for number in range(100)])
        given = {"uri": router.uri, "database": "shop", "collection": "orders"}
        modes = ("initial", "when_needed")
        chunks = {"snapshotChunkRows": 30, "maxEventsPerTrigger": 30}
        ends = []
        for mode in modes:  # a snapshot that takes longer than the oplog holds events
            with (
                start_router(cluster.configdb, upstream=cluster.mongos_uri) as fresh,  # no old log
                batches({**given, **chunks, "uri": fresh.uri, "snapshotMode": mode}) as query,
            ):
                query.until(lambda query=query: len(query.rows) > 0, "the snapshot")
                cluster.roll_over()
                orders.update_many({}, {"$inc": {"n": 1}})
                query.until(lambda query=query: "snapshotEnd" in query.kinds(), "its end")
                # A batch in between is empty if the shard answers late: then it is the usual error.
                with pytest.raises(HistoryLostError, match="history lost: "):
                    query.until(lambda: False, "the stream")
                ends.append(query.offset)
        for mode, end in zip(modes, ends, strict=True):
            with batches({**given, "snapshotMode": mode}, end) as query:
                if mode == "initial":
                    with pytest.raises(HistoryLostError):
                        query.until(lambda: False, "the stream")
                    continue
                query.until(lambda query=query: "snapshotEnd" in query.kinds(), "a snapshot")
                assert {json.loads(row["fullDocument"])["n"] for row in query.rows[:-1]} == {2}
                assert len(query.rows) == 101
        lost = Offset.of(ends[0])
        with batches(given) as query, pytest.raises(HistoryLostError):
            query.reader.planner.client.require_history(lost.position)
