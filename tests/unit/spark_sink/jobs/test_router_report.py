"""What a running job reports to its router, and that the router never stops it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from bson import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.synchronous.database import Database

from router.commands.job_reports import JobReport
from spark_sink.jobs.progress import BatchProgress
from spark_sink.jobs.router_report import RouterReport
from tests.harness.facade import Facade, facade
from tests.harness.ports import free_port

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMAND = "mergerouterReportJob"


class IdleQuery:
    """A query that has found no further events."""

    status: ClassVar = {"isDataAvailable": False}


QUERY: Any = IdleQuery()


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def reporting(port: int, clock: Clock, **options: str) -> RouterReport:
    given = {"uri": f"mongodb://127.0.0.1:{port}/", "database": "shop", "collection": "orders"}
    return RouterReport("s3://key:secret@place/tables", {**given, **options}, clock)


@asynccontextmanager
async def router() -> AsyncIterator[Facade]:
    async with facade(now=lambda: NOW) as made:
        yield made


def batch(number: int, events: int) -> BatchProgress:
    return BatchProgress(number, events, 2.0, 1_795_163_230, 4.0)


def kept(made: Facade) -> list[JobReport]:
    return made.node.jobs.current(NOW)


async def test_batches_are_reported_with_their_rate() -> None:
    clock = Clock()
    async with router() as made:
        report = reporting(made.port, clock)
        report.turn(QUERY)
        assert kept(made) == []  # before the first batch only after a minute
        clock.seconds += 20
        report.add(batch(6, 500))
        report.add(batch(7, 700))
        await asyncio.to_thread(report.turn, QUERY)
        (found,) = kept(made)
        assert found == JobReport(
            "s3://place/tables", "127.0.0.1", "shop.orders", NOW, 7,
            Timestamp(1_795_163_230, 0), 60.0, idle=True,
        )  # fmt: skip
        clock.seconds += 61
        await asyncio.to_thread(report.turn, QUERY)
        assert [each.rate for each in kept(made)] == [0]
        await asyncio.to_thread(report.__exit__, None, None, None)
        assert [each.ended for each in kept(made)] == [True]


async def test_a_failure_remains_on_the_page() -> None:
    async with router() as made:
        report = reporting(made.port, Clock())
        await asyncio.to_thread(report.failed, "No space left on device")
        await asyncio.to_thread(report.__exit__, None, None, None)
        assert [(each.error, each.ended) for each in kept(made)] == [
            ("No space left on device", False)
        ]


async def test_an_exception_is_reported_as_its_cause() -> None:
    def run(report: RouterReport) -> None:
        with suppress(RuntimeError), report:
            raise RuntimeError("x\nCaused by: java.io.IOException: disk is gone")

    async with router() as made:
        await asyncio.to_thread(run, reporting(made.port, Clock()))
        assert [each.error for each in kept(made)] == ["disk is gone"]


async def test_a_job_on_a_database_or_the_cluster_names_it() -> None:
    async with router() as made:
        for options in ({"collection": "a,b"}, {"collection": "", "database": ""}):
            chosen = {name: text for name, text in options.items() if text}
            given = {"uri": f"mongodb://127.0.0.1:{made.port}/", **chosen}
            if "collection" in chosen:
                given["database"] = "shop"
            report = RouterReport("tables", given, Clock())
            await asyncio.to_thread(report.failed, "x")
        assert [each.namespace for each in kept(made)] == [
            "shop.$cmd.aggregate", "admin.$cmd.aggregate",
        ]  # fmt: skip


LABELLED = {"errorLabels": ["ResumableChangeStreamError"]}


@pytest.mark.parametrize(
    ("error", "reports"),
    [
        (OperationFailure("no such command", 59), 1),
        (OperationFailure("not authorized", 13), 1),
        (OperationFailure("shutting down", 91, LABELLED), 4),
        (AutoReconnect("connection closed"), 4),
    ],
)
def test_only_a_refusal_ends_the_reports(
    error: Exception, reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    def command(self: object, name: str, *_: object, **__: object) -> None:
        sent.append(name)
        raise error

    monkeypatch.setattr(Database, "command", command)
    clock = Clock()
    with reporting(1, clock) as report:
        report.add(batch(1, 1))
        for _ in range(3):
            report.turn(QUERY)
            clock.seconds += 10
    assert sent == [COMMAND] * reports


async def test_a_router_that_does_not_answer_delays_a_job_little() -> None:
    def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Accept the connection, and nothing else."""

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        for port in (server.sockets[0].getsockname()[1], free_port()):
            report = reporting(port, Clock())
            report.add(batch(1, 1))
            began = loop.time()
            await asyncio.to_thread(report.turn, QUERY)
            assert loop.time() - began < 5
