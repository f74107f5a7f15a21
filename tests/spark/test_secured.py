"""Spark reads a cluster with users through a router; the password appears nowhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pymongo
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.harness.clusters import start_real_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings, write_key_file

pytestmark = [pytest.mark.xdist_group("spark_queries"), pytest.mark.timeout(600)]

PASSWORD = "s3cret-of-spark"


class Secured(NamedTuple):
    """A router on a cluster with users, and the cluster time before the documents to read."""

    router: RouterProcess
    start: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    key_file = write_key_file(tmp_path_factory.mktemp("spark"))
    settings = ServerSettings(noop_interval=1, key_file=key_file)
    with (
        start_real_cluster(2, settings=settings) as real,
        pymongo.MongoClient[dict[str, Any]](real.mongos_uri) as root,
    ):
        role = [{"role": "read", "db": "shop"}]
        root.admin.command("createUser", "spark", pwd=PASSWORD, roles=role)
        root.shop.orders.insert_one({"_id": 0})
        root.other.c.insert_one({"_id": 0})
        upstream = f"mongodb://{real.mongos}/"
        with start_router(real.configdb, upstream, keyFile=key_file) as router:
            start = root.admin.command("ping")["operationTime"]
            root.shop.orders.insert_many([{"_id": number} for number in range(1, 31)])
            yield Secured(router, f"{start.time},{start.inc}")


def frame(
    spark: SparkSession, secured: Secured, folder: Path, password: str, database: str
) -> DataFrame:
    file = folder / "uri"
    file.write_text(f"mongodb://spark:{password}@127.0.0.1:{secured.router.port}/")
    reader = spark.readStream.format("mergerouter").option("uriFile", str(file))
    return reader.option("database", database).option("startAtOperationTime", secured.start).load()


def written(folder: Path) -> bytes:
    """Return the contents of all files of a query's checkpoint."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_user_reads_what_its_privileges_allow(
    spark: SparkSession, secured: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read = frame(spark, secured, tmp_path, PASSWORD, "shop")
    writing = read.writeStream.format("memory").queryName("secured").trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert spark.table("secured").count() == 30
    query.explain(extended=True)
    read.explain(extended=True)
    plans = capfd.readouterr().out
    assert "Physical Plan" in plans
    assert PASSWORD not in plans
    assert PASSWORD not in str(query.recentProgress)
    assert PASSWORD.encode() not in written(tmp_path / "checkpoint")
    assert not [line for line in secured.router.logs() if PASSWORD in str(line)]


@pytest.mark.parametrize(
    ("password", "database", "message"),
    [("wr0ng-one", "shop", "Authentication failed"), (PASSWORD, "other", "not allowed")],
    ids=["wrong password", "another database"],
)
def test_refusals_do_not_show_the_password(
    spark: SparkSession,
    secured: Secured,
    tmp_path: Path,
    password: str,
    database: str,
    message: str,
) -> None:
    def run() -> None:
        read = frame(spark, secured, tmp_path, password, database)
        query = read.writeStream.format("memory").queryName("refused").trigger(availableNow=True)
        query.start().awaitTermination()

    with pytest.raises(PySparkException) as failure:
        run()
    assert message in str(failure.value)
    assert password not in str(failure.value)
