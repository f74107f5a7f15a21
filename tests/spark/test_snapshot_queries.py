"""Batch reads and streams that begin with a snapshot, in a running Spark."""

import json
from unittest.mock import Mock

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_sink.batches.event_planner import EventPlanner
from spark_sink.errors import HistoryLostError
from spark_sink.events.positions import AtTime
from spark_sink.options.stream_options import parse_options
from spark_sink.source.offsets import Offset
from spark_sink.source.readers import MergerouterStreamReader
from spark_sink.source.task_rows import SnapshotTask, SourceEvent
from tests.spark.conftest import Shop

# One cluster, one Spark, which takes minutes to start on a busy machine.
pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]


def identifiers(frame: DataFrame, op: str) -> list[int]:
    rows = frame.where(frame.op == op).select("documentKey").collect()
    return sorted(json.loads(row.documentKey)["_id"] for row in rows)


def test_batch_reads_of_documents_and_of_changes(spark: SparkSession, shop: Shop) -> None:
    shop.insert(100)
    between = shop.now()
    shop.insert(50)

    def read(**more: object) -> DataFrame:
        return spark.read.format("mergerouter").options(**shop.options("orders", **more)).load()

    snapshot = read(mode="snapshot", snapshotChunkRows=30)
    assert snapshot.rdd.getNumPartitions() >= 4
    assert identifiers(snapshot, "r") == list(range(150))
    split = f"{between.time},{between.inc + 1}"
    earlier = read(mode="changes", endAtOperationTime=split, **shop.begin)
    assert identifiers(earlier, "c") == list(range(100))
    last = max(row.token for row in earlier.select("token").collect())
    later = read(mode="changes", startAfter=last)
    assert identifiers(later, "c") == list(range(100, 150))
    for given, message in (
        ({}, "option 'mode' is required"),
        ({"mode": "changes"}, "changes requires startAtOperationTime"),
        ({"mode": "snapshot", "startAfter": last}, "a snapshot fixes"),
    ):
        with pytest.raises(AnalysisException, match=message):
            read(**given).count()


@pytest.mark.parametrize(
    ("given", "recovers"),
    [
        ({"snapshotMode": "when_needed"}, True),
        ({"snapshotMode": "initial"}, False),
        ({"onHistoryLost": "snapshot"}, True),
        ({"snapshotMode": "when_needed", "onHistoryLost": "fail"}, False),
    ],
)
def test_a_lost_history_is_replaced_by_a_snapshot_if_an_option_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], recovers: bool
) -> None:
    shop.insert(5)
    lost = HistoryLostError("history lost")
    monkeypatch.setattr(EventPlanner, "next_batch", Mock(side_effect=lost))
    chosen = parse_options(shop.options("orders", **given))
    reader = MergerouterStreamReader(chosen, 0.0)
    start = Offset(AtTime(shop.created), chosen.scope).document
    try:
        if not recovers:
            with pytest.raises(HistoryLostError):
                reader.latestOffset(start, ReadAllAvailable())
            return
        begun = reader.latestOffset(start, ReadAllAvailable())
        assert reader.partitions(start, begun) == []
        end = reader.latestOffset(begun, ReadAllAvailable())
        last = reader.latestOffset(end, ReadAllAvailable())
        parts = [*reader.partitions(begun, end), *reader.partitions(end, last)]
        with pytest.raises(HistoryLostError, match="the snapshot took longer than"):
            reader.latestOffset(last, ReadAllAvailable())  # and not snapshots for ever
    finally:
        reader.stop()
    assert [type(partition.value) for partition in parts] == [SnapshotTask, SourceEvent]
    reader = MergerouterStreamReader(chosen, 0.0)
    try:
        assert (
            Offset.of(reader.latestOffset(last, ReadAllAvailable())).snapshots.initial_plan
            is not None
        )
    finally:
        reader.stop()
