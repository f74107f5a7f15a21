"""The job: from collections to tables, its start, its orderly end, and its maintenance."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_sink.cli import job
from spark_sink.errors import OptionError
from spark_sink.events.positions import after
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_tables import DEFAULT_TABLES, MESSAGES, TRANSACTIONS
from spark_sink.jobs.report.status import status_of
from spark_sink.jobs.table_commits import TableCommits
from spark_sink.options.scope import namespace_options
from spark_sink.options.stream_options import parse_options
from spark_sink.running import Job
from spark_sink.source.offsets import Offset
from spark_sink.source.option_checks import warn_of_unmatched_names
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.delta_log import DeltaLog
from tests.harness.clusters import TestCluster, real_servers_named
from tests.harness.until import wait_for
from tests.spark.conftest import Shop
from tests.spark.jobs import NO_DIFFERENCE, differences, forget_last_commit, rows_of, run_job
from tests.spark.query_process import REPOSITORY, WAIT, QueryProcess
from tests.spark.quick_session import QUICK

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(600)]


@pytest.mark.timeout(900)
def test_a_job_writes_a_snapshot_and_changes_and_stops_on_a_signal(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    shop.insert(40)
    folder = tmp_path / "job"
    query = QueryProcess(shop, folder)
    folder.mkdir()
    command = [sys.executable, "-m", "spark_sink.cli", "run", shop.database]
    command += ["--uri", shop.uri, "--out", str(folder), "--trigger", "0 seconds"]
    command += [*(f"--conf={name}={text}" for name, text in QUICK.items())]
    with (folder / "log").open("wb") as log:
        query.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        query.wait_for(lambda: len(query.batches("commits")) > 1)

        # A second start, and commands that change the job, are refused; the job continues.
        others = [["rebuild", "--out", str(folder)], ["seek", "--to=1,1", "--out", str(folder)]]
        for refused in (command[3:], *others):
            answer = subprocess.run(
                [*command[:3], *refused], cwd=REPOSITORY, capture_output=True, text=True
            )
            assert answer.returncode == 2
            assert f"is running (process {query.process.pid} on " in answer.stderr
        shop.insert(20)
        shop.orders.update_one({"_id": 1, "customer": 1}, {"$set": {"text": "changed"}})
        shop.orders.delete_one({"_id": 2, "customer": 2})
        shop.client[shop.database].items.insert_one({"_id": 1})

        def arrived() -> bool:
            return len(query.batches("commits")) > 2 and len(rows_of(folder)) >= 40 + 1 + 23

        query.wait_for(arrived)

        # Its tables are compacted while it commits a batch after the other.
        updates, compact = 1, [*command[:3], "compact", "--out", str(folder)]
        for _ in range(3):
            beside = subprocess.Popen(compact, cwd=REPOSITORY)
            while beside.poll() is None:
                shop.orders.update_one({"_id": 3, "customer": 3}, {"$inc": {"n": 1}})
                updates += 1
                time.sleep(0.05)
            assert beside.returncode == 0

        def updated() -> bool:
            return sum(row["operationType"] == "update" for row in rows_of(folder)) == updates

        # Bronze gets a batch first: this one is in progress. After a signal no other batch is sure
        # to be read, or to be committed.
        query.wait_for(updated)
        query.process.send_signal(signal.SIGINT)  # for which Spark has a handler of its own
        assert query.process.wait(WAIT) == 0, (folder / "log").read_text()
        told = (folder / "log").read_text().splitlines()
        assert "Spark has started: the job begins" in told
        last = query.batches("commits")[-1]
        assert told[-1] == f"stopped after batch {last}; the next start continues"
    finally:
        query.process.kill()
    assert query.batches("commits") == query.batches("offsets")
    assert "Traceback" not in (folder / "log").read_text()
    kinds = [row["operationType"] for row in rows_of(folder)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "read": 40, "snapshotEnd": 1, "insert": 21, "update": updates, "delete": 1,
    }  # fmt: skip
    assert differences(spark, shop, folder) == NO_DIFFERENCE
    page = (REPOSITORY / "docs" / "spark.md").read_text()
    section = page.partition("\n## Reading the tables\n")[2].partition("\n## ")[0]
    code = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    read: dict[str, Any] = {"spark": spark}
    exec("\n".join(code).replace("orders/", f"{folder}/"), read)
    assert read["table"].count() == 60

    # Where it stands, without Spark.
    runner = CliRunner()
    found = runner.invoke(job, ["status", "--out", str(folder), "--uri", shop.uri, "--json"])
    status = json.loads(found.output)
    assert status["batch"] == query.batches("commits")[-1]
    assert (status["uncommitted"], status["namespaces"]) == (None, [shop.database])
    assert status["lagSeconds"] < 900
    lines = runner.invoke(job, ["offsets", "--out", str(folder)]).output.splitlines()
    assert [json.loads(line)["batch"] for line in lines] == query.batches("offsets")

    # It resumes at its checkpoint, and many small files are compacted into a few.
    shop.insert(10)
    run_job(spark, shop, folder)
    tokens = sorted(row["token"] for row in rows_of(folder))
    done = runner.invoke(job, ["compact", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    compacted = re.search(r"bronze: (\d+) files compacted into (\d+)", done.output)
    assert compacted is not None
    assert int(compacted[1]) > int(compacted[2])
    assert sorted(row["token"] for row in rows_of(folder)) == tokens
    assert differences(spark, shop, folder) == NO_DIFFERENCE


def messages_in(folder: Path) -> list[tuple[str, int]]:
    return sorted((row["token"], row["index"]) for row in rows_of(folder, MESSAGES))


def test_a_job_is_behind_its_stream_and_not_its_last_event(tmp_path: Path, shop: Shop) -> None:
    shop.insert(1)
    begun = shop.now()
    options = namespace_options((shop.database,))
    folder = JobFolder(str(tmp_path / "job"), str(tmp_path / "checkpoint"))
    folder.begin(JobRecord((shop.database,), options))
    scope = parse_options({**options, "uri": shop.uri}).scope
    folder.checkpoint.write("q", {0: Offset(after(begun), scope).document}, 0)
    while shop.now().time < begun.time + 5:  # other collections have events
        shop.client[f"{shop.database}_other"].c.insert_one({})
        time.sleep(0.5)
    wait_for(lambda: status_of(folder, shop.uri)["lagSeconds"] <= 3, "a lag of no event")
    shop.insert(1)
    assert status_of(folder, shop.uri)["lagSeconds"] >= 5

    # A checkpoint that was moved is named.
    moved, runner = str(tmp_path / "moved"), CliRunner()
    Path(folder.checkpoint.address).rename(moved)
    for more, told in (
        ([], f"none yet in the checkpoint {folder.checkpoint.address}"),
        (["--checkpoint", moved], "0"),
    ):
        found = runner.invoke(job, ["status", "--out", folder.address, *more])
        assert f"last batch  {told}" in found.output.splitlines()


def test_a_wait_for_a_write_outside_of_the_scope_ends(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    """The job has no event of that time, so it must be asked to move on."""
    shop.insert(3)
    names = [f"{shop.database}.orders"]
    made = Job(str(tmp_path), uri=shop.uri, namespaces=names, trigger="1 second")
    with made.start(spark) as started:
        started.wait("now", timeout=WAIT)
        with shop.client.start_session() as session:
            elsewhere = shop.client[f"{shop.database}-elsewhere"]
            elsewhere.ticks.insert_one({}, session=session)
            time_of_write = session.operation_time
            assert time_of_write is not None
            started.wait(time_of_write, timeout=WAIT)
            reached = JobFolder(str(tmp_path)).checkpoint.batches()[-1].end.time
            assert reached is not None
            assert reached > time_of_write
        elsewhere.ticks.insert_one({})
        given = ["wait", "--to", "now", "--timeout", "10m", "--out", str(tmp_path)]
        found = CliRunner().invoke(job, [*given, "--uri", shop.uri])
        assert found.stdout == "all tables have all events up to then\n"
        [status] = started.status()
        assert status["namespaces"] == names
        assert {each.count for each in started.verify(spark).values()} == {0}
    kinds = sorted(row["operationType"] for row in rows_of(tmp_path))
    assert kinds == ["read", "read", "read", "snapshotEnd"]


def test_a_batch_that_is_repeated_is_in_the_tables_once(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    shop.insert(30)
    shop.client[shop.database].items.insert_one({"_id": 1})
    chosen = {"collection.exclude.list": f"{shop.database}[.]items"}
    chosen |= {"field.exclude.list": "*.orders.text", "field.renames": "*.orders.n:count"}
    chosen["onHistoryLost"] = "snapshot"
    tables, messages = (*DEFAULT_TABLES, TRANSACTIONS, MESSAGES), {"prefix": "p"}
    run_job(spark, shop, tmp_path, tables, options=chosen, messages=messages)
    shop.insert(10)
    with shop.client.start_session() as session, session.start_transaction():
        for number in (91, 96):  # on both shards
            shop.orders.insert_one({"_id": number, "customer": number % 10}, session=session)
    shop.orders.update_many({}, {"$inc": {"n": 1}})
    run_job(spark, shop, tmp_path, tables, options=chosen, messages=messages)
    tokens = sorted(row["token"] for row in rows_of(tmp_path))
    # As if killed after all tables but one were written.
    last, sent = forget_last_commit(tmp_path), messages_in(tmp_path)
    for name in (*DEFAULT_TABLES, MESSAGES):
        batch = DeltaLog(str(tmp_path / name)).state().batch
        assert batch.number == last
        assert batch.offset == JobFolder(str(tmp_path)).checkpoint.offset(last)
    max((tmp_path / MESSAGES / "_delta_log").glob("*.json")).unlink()
    run_job(spark, shop, tmp_path, tables, options=chosen, messages=messages)
    assert (tmp_path / "checkpoint" / "commits" / str(last)).exists()
    # As if the checkpoint were lost: the tables have what it said.
    runner = CliRunner()
    shutil.rmtree(tmp_path / "checkpoint")
    rebuilt = runner.invoke(job, ["rebuild", "--out", str(tmp_path)])
    assert rebuilt.output == f"the checkpoint continues after batch {last} of the tables\n"
    shop.insert(1)
    run_job(spark, shop, tmp_path, tables, options=chosen, messages=messages)
    assert len(rows_of(tmp_path)) == len(tokens) + 1
    tokens = sorted(row["token"] for row in rows_of(tmp_path))
    assert messages_in(tmp_path)[:-1] == sent
    for name in (*tables, "notifications"):  # each has recognised the batch
        commits = DeltaTable(tmp_path / name).history()
        states = [each["mergerouter"] for each in commits if "mergerouter" in each]
        numbers = [state["batch"]["number"] for state in states]
        assert len(numbers) == len(set(numbers))
    assert sorted(row["token"] for row in rows_of(tmp_path)) == tokens
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE
    [row, *_] = CurrentTable.existing(str(tmp_path / "current")).log.read(spark).collect()
    assert {"_id", "customer", "count"} >= json.loads(row.fullDocument).keys() >= {"_id", "count"}
    [transaction] = rows_of(tmp_path, TRANSACTIONS)
    assert dict(transaction["data_collections"]) == {f"{shop.database}.orders": 2}
    told = rows_of(tmp_path, "notifications")
    assert {row["aggregate_type"] for row in told} == {"Initial Snapshot"}
    assert [row["type"] for row in sorted(told, key=lambda row: row["timestamp"])] == [
        "STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED", "SKIPPED",
        "SKIPPED",
    ]  # fmt: skip


@pytest.mark.parametrize("modes", [("initial_only", "initial"), ("initial", "initial_only")])
def test_in_the_first_batch_job_run_and_job_snapshot_continue_each_other(
    tmp_path: Path,
    shop: Shop,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    modes: tuple[str, str],
) -> None:
    shop.insert(20)
    killed, continued = modes
    with monkeypatch.context() as patched:
        patched.setattr(TableCommits, "commit", Mock(side_effect=OSError))
        with pytest.raises(StreamingQueryException):
            run_job(spark, shop, tmp_path, options={"snapshotMode": killed})
    shop.insert(5)
    run_job(spark, shop, tmp_path, options={"snapshotMode": continued})
    kinds = Counter(row["operationType"] for row in rows_of(tmp_path))
    reads = 20 if real_servers_named() else 25  # the embedded cluster keeps no old versions
    assert kinds == Counter(read=reads, snapshotEnd=1, insert=5 * (continued == "initial"))
    run_job(spark, shop, tmp_path, options={"snapshotMode": "initial"})
    assert len(rows_of(tmp_path)) == reads + 6
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE


def test_an_event_without_its_image_does_not_fail_a_tolerant_job(
    tmp_path: Path, shop: Shop, spark: SparkSession
) -> None:
    shop.insert(3)
    options = {"fullDocument": "required"}
    run_job(spark, shop, tmp_path, options=options)
    shop.orders.update_many({}, {"$set": {"n": 1}})  # the collection stores no images
    shop.insert(1)
    with pytest.raises(StreamingQueryException, match="post-image"):
        run_job(spark, shop, tmp_path, options=options)
    run_job(spark, shop, tmp_path, options={**options, "errors.tolerance": "all"})
    assert differences(spark, shop, tmp_path) == NO_DIFFERENCE
    assert rows_of(tmp_path, "quarantine") == []


def test_a_bad_pipeline_is_told_before_spark_starts(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.running.job_session", None)
    monkeypatch.setattr("spark_sink.jobs.stop_request.signal.signal", lambda *_: None)
    arguments = ["run", f"{shop.database}.orders", "--uri", shop.uri, "--out", str(tmp_path / "x")]
    arguments += ["--option", "snapshotMode=no_data", "--option", 'pipeline=[{"$mtch": {}}]']
    result = CliRunner().invoke(job, arguments)
    assert result.exit_code == 1
    assert result.output.startswith(
        "error: the servers refuse an option of the stream, such as 'pipeline'"
    )
    assert "$mtch" in result.output
    assert len(result.output.splitlines()) == 1
    assert "RawBSON" not in result.output


@pytest.mark.parametrize("name", ["run", "verify"])
def test_what_matches_nothing_is_told(
    name: str, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(*_: object) -> None:
        raise OptionError("Spark starts")

    for module in ("spark_session", "running"):
        monkeypatch.setattr(f"spark_sink.{module}.job_session", session)
    monkeypatch.setattr("spark_sink.jobs.stop_request.signal.signal", lambda *_: None)
    shop.insert(1)
    names = [f"{shop.database}.{each}" for each in ("ordrs", "orders")]
    folder = str(tmp_path / "job")
    chosen = namespace_options([*names, "none.a"])
    JobFolder(folder).begin(JobRecord((), chosen))
    given = [f"--option={each}={text}" for each, text in chosen.items()] if name == "run" else []
    result = CliRunner().invoke(job, [name, *given, "--uri", shop.uri, "--out", folder])
    assert result.output == (
        f"warning: nothing matches none.a of collection.include.list, {names[0]} of "
        f"collection.include.list (did you mean {names[1]}?): correct the option, or create it\n"
        "error: Spark starts\n"
    )


def test_lists_that_match_nothing_and_what_has_no_stream_are_told(
    shop: Shop, cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is told once, and nothing else is; patterns match names without regard to case."""
    shop.insert(1)
    base = shop.client[shop.database]
    base.create_collection("open", viewOn="orders", pipeline=[])
    if cluster.real:  # the embedded cluster makes a collection of it
        base.create_collection("Weather", timeseries={"timeField": "at"})
    options = {
        "uri": shop.uri,
        "signalCollection": "nowhere.zzz",
        "database.include.list": f"{shop.database},none",
        "collection.include.list": f"{shop.database}[.]ORDERS,{shop.database}[.](open|weather),a.b",
        "snapshot.include.collection.list": f"{shop.database.upper()}.ORDERS,c.d",
        "snapshotFilters": json.dumps(
            {f"{shop.database}.orders": {}, f"{shop.database}.items": {}}
        ),
        "field.exclude.list": f"*.orders.x,{shop.database}.itms.x",
        "field.renames": "*.*.y:z",
    }
    warn_of_unmatched_names(options)
    assert capsys.readouterr().err.splitlines() == [
        "warning: nothing matches nowhere.zzz of signalCollection, none of database.include.list, "
        "a.b of collection.include.list, c.d of snapshot.include.collection.list, "
        f"{shop.database}.items of snapshotFilters (did you mean {shop.database}.orders?), "
        f"{shop.database}.itms of field.exclude.list: correct the option, or create it",
        "warning: "
        f"{f'the time series collection {shop.database}.Weather, ' if cluster.real else ''}"
        f"the view {shop.database}.open: left out, because MongoDB has no change stream of it",
    ]
    excluded = {"collection.exclude.list": f"{shop.database}.(open|weather),ordrs"}
    warn_of_unmatched_names({"uri": shop.uri, "database": shop.database, **excluded})
    assert capsys.readouterr().err == (
        "warning: nothing matches ordrs of collection.exclude.list: correct the option, or create "
        "it\n"
    )
