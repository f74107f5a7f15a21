"""What `local_session` sets, and who ends the session of a job's command."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_sink import local_session, register, spark_session
from spark_sink.spark_session import _DYNAMIC, job_session

pytestmark = pytest.mark.xdist_group("spark_queries")  # one Spark

SCHEMA = "token string, operationType string, event binary"


def test_queries_write_unique_columns_without_parquet_dictionaries(
    spark: SparkSession, tmp_path: Path
):
    # Of values that repeat, Parquet's writer keeps a dictionary unless it is told not to.
    rows = [("82", "insert", b"event")] * 100
    spark.createDataFrame(rows, SCHEMA).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "rows"))
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    [group] = {
        tuple("DICTIONARY" in str(chunk.encodings) for chunk in _columns(path))
        for path in (tmp_path / "table").glob("*.parquet")
    }
    assert group == (False, True, False)


def test_a_progress_bar_is_drawn_on_terminals_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.ui.showConsoleProgress") == str(sys.stderr.isatty()).lower()


@pytest.mark.parametrize("is_given", [False, True])
def test_the_last_command_that_uses_a_context_ends_it(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MagicMock()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(spark_session, "_open_job_session", lambda *_: made)
    monkeypatch.setattr(spark_session, "register", lambda _: None)
    made.newSession().sparkContext = made.sparkContext
    given = made.newSession() if is_given else None
    with ExitStack() as first:
        first.enter_context(job_session("run", {}))
        monkeypatch.setattr(SparkContext, "_active_spark_context", made.sparkContext)
        with job_session("verify", {}):
            pass
        with job_session("run", {}, given) as second:
            assert second is (given or made)
            first.close()
            assert not made.stop.called
        assert second.stop.call_count == 1


def test_a_command_does_not_end_the_session_of_its_process(spark: SparkSession) -> None:
    with job_session("verify", {}):
        pass
    with job_session("verify", {}) as used:
        assert used.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def _columns(path: Path) -> list[pq.ColumnChunkMetaData]:
    group = pq.ParquetFile(path).metadata.row_group(0)
    return [group.column(number) for number in range(group.num_columns)]


@pytest.mark.parametrize(
    ("master", "host"), [("local[2]", "127.0.0.1"), ("spark://spark:7077", None)]
)
def test_executors_elsewhere_get_the_package_and_the_variables_of_object_stores(
    master: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MagicMock()
    monkeypatch.setattr(spark_session, "SparkSession", made)
    monkeypatch.setenv("AWS_REGION", "here")
    builder = made.builder.appName.return_value
    builder.config.return_value = builder
    context = builder.getOrCreate.return_value.sparkContext
    context.pythonExec, context.master, context.environment = sys.executable, master, {}
    context.defaultParallelism, context.getConf.return_value.get.return_value = 2, ""
    builder.getOrCreate.return_value.conf.get.return_value = ""
    local_session(settings={"spark.master": master})
    given = builder.config.call_args.kwargs["map"]
    assert (given["spark.master"], given.get("spark.driver.host")) == (master, host)
    if host is not None:
        assert context.environment == {"MIMALLOC_PURGE_DELAY": "-1"}
        return
    [[archive]] = [call.args for call in context.addPyFile.call_args_list]
    expected = {"PYTHONPATH": archive, "AWS_REGION": "here"}
    assert expected.items() <= context.environment.items()
    script = "import spark_sink.source.data_source as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={"PYTHONPATH": archive},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(archive)


def test_a_batch_of_a_snapshot_has_two_tasks_for_each_core() -> None:
    """Spark's planner has no session: the class that is registered has the number."""
    for conf, tasks in (
        ({}, 6),
        ({"spark.executor.instances": "5", "spark.executor.cores": "4"}, 40),
        ({"spark.cores.max": "16"}, 32),
        ({"spark.dynamicAllocation.enabled": "true", _DYNAMIC: "100"}, 200),
    ):
        spark = MagicMock()
        spark.sparkContext.pythonExec, spark.sparkContext.master = sys.executable, "local[3]"
        spark.sparkContext.defaultParallelism = 3
        spark.sparkContext.getConf.return_value.get = lambda name, default, c=conf: c.get(
            name, default
        )
        spark.conf.get.return_value = ""
        register(spark)
        [source] = spark.dataSource.register.call_args.args
        source = cloudpickle.loads(cloudpickle.dumps(source))
        for given, expected in (({}, tasks), ({"snapshottasks": "9"}, 9)):
            options = CaseInsensitiveDict({"uri": "mongodb://127.0.0.1:1/", **given})
            assert source(options)._parsed().snapshot.tasks == expected
