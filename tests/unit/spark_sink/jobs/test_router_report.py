"""What a running job reports to its router, and that the router never stops it."""

import asyncio
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from bson import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.synchronous.database import Database

from router.commands.job_reports import JobReport
from spark_sink.jobs.report.progress import QueryProgress
from spark_sink.jobs.report.router_report import RouterReport
from spark_sink.jobs.task_writer import TaskReport
from tests.harness.facade import Facade, facade

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMAND = "mergerouterReportJob"


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def reporting(port: int, clock: Clock) -> RouterReport:
    given = {"uri": f"mongodb://127.0.0.1:{port}/", "database": "shop", "collection": "orders"}
    return RouterReport("s3://key:secret@place/tables", given, clock)


def batch(number: int, events: int) -> QueryProgress:
    return QueryProgress(number, TaskReport(events=events), 2.0, 1_795_163_230, 4.0)


def kept(made: Facade) -> list[JobReport]:
    return made.process.jobs.current(NOW)


async def test_batches_are_reported_with_their_rate() -> None:
    clock = Clock()
    async with facade(now=lambda: NOW) as made:
        report = reporting(made.port, clock)
        report.turn()
        assert kept(made) == []  # before the first batch only after a minute
        clock.seconds += 20
        report.add(batch(6, 500))
        report.add(batch(7, 700))
        report.add(QueryProgress(through=1_795_163_230, waits=True))
        await asyncio.to_thread(report.turn)
        (found,) = kept(made)
        assert found == JobReport(
            "s3://place/tables", "127.0.0.1", "shop.orders", NOW, 7,
            Timestamp(1_795_163_230, 0), 60.0, waits=True,
        )  # fmt: skip
        clock.seconds += 61
        await asyncio.to_thread(report.turn)
        assert [each.rate for each in kept(made)] == [0]
        await asyncio.to_thread(report.__exit__, None, None, None)
        assert [each.ended for each in kept(made)] == [True]


@pytest.mark.parametrize(
    ("scope", "namespace"),
    [
        ({"database": "shop", "collection": "orders"}, "shop.orders"),
        ({"database": "shop", "collection": "a,b"}, "shop.$cmd.aggregate"),
        ({}, "admin.$cmd.aggregate"),
    ],
)
async def test_a_failure_remains_on_the_page_with_its_cause(
    scope: dict[str, str], namespace: str
) -> None:
    def run(report: RouterReport) -> None:
        with suppress(RuntimeError), report:
            raise RuntimeError("x\nCaused by: java.io.IOException: disk is gone")

    async with facade(now=lambda: NOW) as made:
        uri = f"mongodb://127.0.0.1:{made.port}/"
        await asyncio.to_thread(run, RouterReport("tables", {"uri": uri, **scope}, Clock()))
        found = [(each.namespace, each.error, each.ended) for each in kept(made)]
        assert found == [(namespace, "disk is gone", False)]


LABELLED = {"errorLabels": ["ResumableChangeStreamError"]}


@pytest.mark.parametrize(
    ("error", "further", "is_told"),
    [
        (OperationFailure("no such command", 59), "ping", False),
        (OperationFailure("not authorized", 13), "ping", False),
        (OperationFailure("shutting down", 91, LABELLED), COMMAND, True),
        (AutoReconnect("connection closed"), COMMAND, True),
    ],
)
def test_a_silence_is_told_and_a_refusal_ends_the_reports(
    error: Exception,
    further: str,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent: list[str] = []

    def command(self: object, name: str, *_: object, **__: object) -> None:
        sent.append(name)
        if name == COMMAND and len(sent) < 4:
            raise error

    monkeypatch.setattr(Database, "command", command)
    clock = Clock()
    with reporting(1, clock) as report:
        report.add(batch(1, 1))
        for _ in range(4):
            report.turn()
            clock.seconds += 10
    assert sent == [COMMAND, *[further] * 4]
    told = capsys.readouterr().err.splitlines()
    if is_told:
        assert told[0].startswith("127.0.0.1:1 has not answered for 20 s (")
        assert told[1:] == ["the router answers again"]
    else:
        assert told == []


@pytest.mark.parametrize("failure", [None, RuntimeError("disk is gone")])
def test_a_job_that_has_ended_does_not_say_that_it_waits(
    failure: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Database, "command", Mock(side_effect=AutoReconnect("connection closed")))
    clock = Clock()
    with suppress(RuntimeError), reporting(1, clock) as report:
        report.add(batch(1, 1))
        report.turn()
        clock.seconds += 20
        if failure is not None:
            raise failure
    assert capsys.readouterr().err == ""


def test_a_router_that_does_not_answer_delays_a_job_little() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        report = reporting(silent.getsockname()[1], Clock())
        report.add(batch(1, 1))
        began = time.monotonic()
        report.turn()
        assert time.monotonic() - began < 20  # a driver waits for 30 s by default
