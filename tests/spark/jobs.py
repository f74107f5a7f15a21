"""Jobs that run in the test's process, and what their tables have."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink.jobs.history.newest_batch import restore_checkpoint
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_query import JobQuery
from spark_sink.jobs.job_tables import BRONZE, CURRENT, DEFAULT_TABLES, MESSAGES, TRANSACTIONS
from spark_sink.jobs.task_writer import TaskReport
from spark_sink.options.scope import namespace_options
from spark_sink.verification.verify_job import verify_job
from tests.spark.conftest import Shop

NO_DIFFERENCE: dict[str, set[str]] = {"bronze": set(), "current": set()}
_NONE: Mapping[str, str] = MappingProxyType({})


def run_job(
    spark: SparkSession,
    shop: Shop,
    folder: Path,
    tables: tuple[str, ...] = DEFAULT_TABLES,
    *,
    names: Sequence[str] = (),
    options: Mapping[str, str] = _NONE,
    **record: Any,
) -> dict[int, TaskReport]:
    """Run a job up to the present; return what its batches have written, by their numbers.

    Args:
        spark: the session.
        shop: whose router the job reads.
        folder: the job's.
        tables: that it writes.
        names: what it follows, the whole database of the shop without them.
        options: of the source.
        record: more fields of its record.
    """
    namespaces = tuple(names) or (shop.database,)
    chosen = {**namespace_options(namespaces), "snapshotMode": "initial", **options}
    where = JobFolder(str(folder))
    kept = JobRecord(namespaces, chosen, tables, **record)
    restore_checkpoint(where)
    where.begin(kept)
    written: dict[int, TaskReport] = {}
    job = JobQuery(where, kept, shop.uri, wrote=written.__setitem__)
    job.start(spark, None).awaitTermination()
    return written


def forget_last_commit(folder: Path) -> int:
    """Leave a checkpoint as a kill before the last batch's commit leaves it; return its number."""
    commits = folder / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)
    return last


def rows_of(folder: Path, table: str = "bronze") -> list[dict[str, Any]]:
    """Return the rows that a reader of Delta tables finds."""
    if not DeltaTable.is_deltatable(str(folder / table)):
        return []
    columns = ["token", "operationType", "documentKey"] if table == "bronze" else None
    rows: list[dict[str, Any]]
    rows = DeltaTable(folder / table).to_pyarrow_table(columns=columns).to_pylist()
    return rows


def differences(spark: SparkSession, shop: Shop, folder: Path) -> dict[str, set[str]]:
    """Return the differences in bronze and current, and those of all others that have some."""
    found = verify_job(spark, JobFolder(str(folder)), shop.uri, shown=1000)
    assert {name: each.remark for name, each in found.items() if each.remark} == {}
    kinds = {name: {row["difference"] for row in each.first} for name, each in found.items()}
    return {name: each for name, each in kinds.items() if each or name in DEFAULT_TABLES}


TABLES = (BRONZE, CURRENT, MESSAGES, TRANSACTIONS)


def change_everything(shop: Shop) -> None:
    for number in range(20, 27):
        key = {"_id": number, "customer": number % 10}
        shop.orders.insert_one({**key, "n": 1, "tags": {"a": 1}})
        shop.orders.update_one(key, {"$set": {"n": 2}, "$unset": {"tags": 1}})
        shop.orders.replace_one(key, {**key, "n": 3})
    shop.orders.delete_one({"_id": 26, "customer": 6})
    for number in range(30, 33):
        with shop.client.start_session() as session, session.start_transaction():
            for each in (number, number + 5):  # on both shards
                document = {"_id": each, "customer": each % 10}
                shop.orders.insert_one(document, session=session)
    shop.client[shop.database].items.insert_one({"_id": 1})
    shop.client[shop.database].items.rename("things")
