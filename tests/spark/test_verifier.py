"""A running job that compares its table with the collections, and repairs what differs."""

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
from pyspark.sql import SparkSession

from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.jobs.report.metrics import JobMetrics
from spark_sink.jobs.report.status import lines_of, status_of
from spark_sink.options.stream_options import parse_options
from spark_sink.verification.rounds import Verifier
from tests.harness.until import wait_for
from tests.spark.batches import TableQuery
from tests.spark.conftest import Shop
from tests.spark.tables import change_at_random, collections_of, damage

pytestmark = [pytest.mark.xdist_group("spark_jobs"), pytest.mark.timeout(900)]
_SECONDS = 300.0


class QuickJob:
    """The batches of a job, in this process, with a verifier."""

    def __init__(
        self,
        spark: SparkSession,
        shop: Shop,
        folder: JobFolder,
        metrics: JobMetrics,
        *,
        repair: bool = True,
    ) -> None:
        advance = {"idleAdvanceSeconds": "1", "signalFolder": folder.signals}
        options = shop.options(snapshotMode="initial", **advance)
        folder.begin(JobRecord((shop.database,)))
        # An interrupted round would go on behind the rows that are damaged now.
        Path(folder.address, "round.json").unlink(missing_ok=True)
        settings = JobSettings(out="", verify_every="1s", verify_rate=100_000, repair=repair)
        self.verifier = Verifier(spark, folder, options, settings, metrics.add_round)
        self.folder, target = folder, folder.table("current")
        self.query = TableQuery(
            parse_options(options), target, most=10_000, findings=self.verifier.findings
        )

    def until(self, done: Callable[[], object], what: str) -> None:
        """Run batches until a condition is true."""

        def is_done() -> bool:
            self.query.batch()
            return bool(done())

        with self.verifier:
            wait_for(is_done, what, _SECONDS)

    def has_found(self, differences: int) -> bool:
        """Return whether a round has found so many, and a commit of the table says so."""
        found = self.verifier.findings.verified
        told = status_of(self.folder)["verified"]
        return found.get("differences") == differences and told == found

    def close(self) -> None:
        """Close the cursors."""
        self.query.reader.stop()


def damaged(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Let the rows lack one, have one too many, one twice, and one with another's document."""
    gone = rows.iloc[-1].copy()
    gone["key"], gone["token"] = '{"$numberInt":"-5"}', rows.iloc[0]["token"]
    rows.loc[rows.index[0], "document"] = rows.iloc[1]["document"]
    return pandas.concat([rows.drop(index=rows.index[2]), gone.to_frame().T, rows.iloc[[5]]])


@pytest.mark.parametrize("shop", ["router", "replica set"], indirect=True)
def test_differences_are_found_and_repaired(
    tmp_path: Path,
    spark: SparkSession,
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop.insert(30)
    # A pattern that is its name does not match it, and a filter with two `_id`s is too long.
    items = shop.client[shop.database]["items[1"]
    items.insert_many([{"_id": f"{n}{'x' * 21_000}"} for n in range(3)])
    folder, metrics = JobFolder(str(tmp_path)), JobMetrics()
    change_at_random(shop, 1, 40)
    job = QuickJob(spark, shop, folder, metrics)
    walked = 2 * len(collections_of(shop))
    job.until(lambda: job.verifier.findings.verified.get("rows") == walked, "a round")
    assert job.verifier.findings.verified["differences"] == 0
    job.close()

    damage(folder.table("current"), damaged)
    # Its requests for repair would outlive it.
    job = QuickJob(spark, shop, folder, metrics, repair=False)
    found = job.verifier.findings
    job.until(lambda: job.has_found(4), "the differences")
    kinds = {each["difference"]: each for each in found.verified["first"]}
    assert kinds.keys() == {"missing", "extra", "different", "doubled"}
    assert kinds["extra"]["key"] == '{"$numberInt":"-5"}'
    assert kinds["different"]["token"]
    job.close()

    # Rounds repair a part of many differences, until there are none.
    monkeypatch.setattr("spark_sink.verification.rounds._MOST_KEPT", 1)
    damage(folder.table("current"), damaged)
    job = QuickJob(spark, shop, folder, metrics)
    change_at_random(shop, 2, 20)
    job.until(lambda: job.has_found(0), "the repair")
    job.close()
    assert "repair: 1 differences now, " in capsys.readouterr().err
    told = lines_of(status_of(JobFolder(str(tmp_path))))
    assert any(line.startswith("verified    through ") for line in told)
    assert job.query.table == collections_of(shop)
    assert metrics.registry.get_sample_value("mergerouter_job_differences") == 0
