"""Reports of jobs: what is kept of them, for how long, and from whom."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Int64, Timestamp

from router.commands.job_reports import (
    KEPT_SECONDS,
    LONGEST_ERROR,
    MOST_REPORTS,
    JobReport,
    JobReports,
)
from tests.harness.facade import facade

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def report(job: str, owner: str = "a", *, after: float = 0.0, **fields: Any) -> JobReport:
    arrived = BEGIN + timedelta(seconds=after)
    return JobReport(job, owner, "shop.orders", arrived, **fields)


def jobs(kept: JobReports, after: float = 0.0) -> list[tuple[str, str]]:
    now = BEGIN + timedelta(seconds=after)
    return [(each.owner, each.job) for each in kept.current(now)]


def test_a_job_s_last_report_is_kept_until_it_expires() -> None:
    kept = JobReports()
    kept.add(report("one", batch=1))
    kept.add(report("two", after=5))
    kept.add(report("one", after=KEPT_SECONDS - 1, batch=2))
    assert jobs(kept, KEPT_SECONDS) == [("a", "two"), ("a", "one")]
    assert jobs(kept, KEPT_SECONDS + 6) == [("a", "one")]
    assert [each.batch for each in kept.current(BEGIN)] == [2]
    assert jobs(kept, 2 * KEPT_SECONDS) == []


def test_one_owner_cannot_remove_the_jobs_of_another() -> None:
    kept = JobReports()
    kept.add(report("nightly", "b"))
    for number in range(2 * MOST_REPORTS):
        kept.add(report(str(number), "a"))
    found = jobs(kept)
    assert len(found) == MOST_REPORTS
    assert found[0] == ("b", "nightly")
    assert found[-1] == ("a", str(2 * MOST_REPORTS - 1))


async def test_a_report_is_cut_and_has_no_control_characters() -> None:
    command = {
        "mergerouterReportJob": "orders", "job": "out\x1b[2J\n", "batch": Int64(2**60),
        "through": Timestamp(5, 1), "rate": 1e300, "error": "e" * 10_000,
    }  # fmt: skip
    async with facade(now=lambda: BEGIN) as made, await made.client() as client:
        assert (await client.command("shop", command))["ok"] == 1
        assert (await client.command("admin", {**command, "mergerouterReportJob": 1}))["ok"] == 1
        one, whole = made.process.jobs.current(BEGIN)
    assert (one.job, one.namespace, one.owner) == ("out [2J ", "shop.orders", "127.0.0.1")
    assert (one.batch, one.rate, one.through) == (2**53, 2**53, Timestamp(5, 1))
    assert one.error is not None
    assert len(one.error) == LONGEST_ERROR
    assert whole.namespace == "admin.$cmd.aggregate"


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        ({}, 2, "job must be given"),
        ({"job": None}, 2, "job must be a valid string"),
        ({"job": 5}, 2, "job must be a valid string"),
        ({"job": "out", "batch": -1}, 2, "batch must be greater than or equal to 0"),
        ({"job": "out", "batch": True}, 2, "batch must be a valid integer"),
        ({"job": "out", "through": 5}, 2, "through must be an instance of Timestamp"),
        ({"job": "out", "rate": float("nan")}, 2, "rate must be a finite number"),
        ({"job": "out", "rate": "many"}, 2, "rate must be a valid number"),
        ({"job": "out", "error": ["no"]}, 2, "error must be a valid string"),
        ({"lagSeconds": 5}, 40415, "'mergerouterReportJob.lagSeconds' is an unknown field"),
    ],
)
async def test_wrong_fields_are_refused(fields: dict[str, Any], code: int, told: str) -> None:
    async with facade() as made, await made.client() as client:
        command = {"mergerouterReportJob": "orders", **fields}
        reply = await client.command("shop", command)
        assert (reply["ok"], reply["code"]) == (0, code)
        assert told in reply["errmsg"]
        assert made.process.jobs.current(made.process.now()) == []
