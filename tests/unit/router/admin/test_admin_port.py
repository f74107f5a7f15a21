"""The admin port: formats of the metrics, health, readiness, the token."""

import asyncio
import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from bson.timestamp import Timestamp
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from structlog.testing import capture_logs

from router.admin import server
from router.admin.metrics import exposition
from router.admin.router_status import RouterStatus, collect_own
from router.catalog.server_checks import Check
from tests.harness.admin import NOW, admin_port, ask, fixed_checks, watched_facade
from tests.harness.facade import Facade, facade
from tests.harness.until import PATIENCE

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"mergerouter_{name}", tuple(sorted(labels.items()))]


async def scrape(made: Facade) -> Samples:
    async with admin_port(made) as port:
        return samples((await ask(port, "/metrics")).text)


async def test_the_metrics_show_the_slowest_shard_and_reasons() -> None:
    async with watched_facade() as made:
        found = await scrape(made)
    assert value(found, "watermark_lag_seconds", shard="north") == 40
    assert value(found, "watermark_timestamp_seconds", shard="south") == NOW - 3
    assert value(found, "streams_held", shard="north", reason="reconnecting") == 1
    assert value(found, "streams_held", shard="north", reason="idle") == 0
    assert value(found, "failing_cursors", shard="north") == 1
    assert value(found, "streams_waiting") == 1
    assert value(found, "noop_commands_total", shard="south", worker="1") == 2
    assert value(found, "errors_total", code="CursorNotFound", worker="1") == 2
    assert value(found, "errors_total", code="99999", worker="1") == 1
    refusals = partial(value, found, "refused_total", worker="1")
    assert refusals(parameter="maxStreams") == 1
    assert refusals(parameter="maxCursors") == 0, "increase() needs a start"
    member = "north.example:27018"
    assert value(found, "member_connections", member=member, state="in_use") == 2
    assert value(found, "member_connections_created_total", member=member, worker="1") == 5


async def test_a_worker_that_does_not_answer_changes_no_counter_of_the_others() -> None:
    async with watched_facade() as made:
        first = (await collect_own(made.process, False)).processes[0]
    both = [first, {**first, "worker": 2}]
    shown = [
        samples(exposition(RouterStatus(each, 2), "")[0].decode()) for each in (both, both[:1])
    ]
    before, after = (
        {key: count for key, count in found.items() if key[0].endswith(("_total", "_bucket"))}
        for found in shown
    )
    assert len(after) * 2 == len(before)
    assert after.items() <= before.items(), "a sum that falls and rises counts as an increase()"


async def test_history_is_counted_from_the_oldest_entry_to_the_farthest_client() -> None:
    async with watched_facade() as made:
        checks = fixed_checks(made)
        checks.found["south"] = Check(
            "shard south", "south", oldest=Timestamp(NOW - 60, 1), complete=True
        )
        before = await scrape(made)
        client = await made.client()
        await client.command(
            "shop", {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {}}
        )
        made.cursors.place = Timestamp(NOW - 3000, 1)
        made.cursors.departed = Timestamp(NOW - 4000, 1)
        found = await scrape(made)
    assert not [name for name, _labels in before if name.endswith("history_left_seconds")]
    assert value(found, "history_left_seconds", shard="north", place="cursor") == 600
    assert value(found, "history_left_seconds", shard="north", place="departed") == -400
    assert value(found, "history_left_seconds", shard="south", place="cursor") == float("inf")
    assert ("mergerouter_history_left_seconds", (("place", "cursor"), ("shard", "config"))) not in (
        found
    )


async def test_errors_sent_to_clients_are_counted_by_code() -> None:
    async with facade() as made:
        client = await made.client()
        await client.command("admin", {"getMore": 1, "collection": "c"})
        found = await scrape(made)
    assert sum(v for (name, _), v in found.items() if name == "mergerouter_errors_total") == 1


@pytest.mark.parametrize(
    ("accept", "content_type", "reading"),
    [
        ("*/*", "text/plain", parse),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text",
         parse_openmetrics),
    ],
    ids=["prometheus", "openmetrics"],
)  # fmt: skip
async def test_both_formats_can_be_parsed_and_every_metric_has_help(
    accept: str, content_type: str, reading: Any
) -> None:
    async with watched_facade() as made, admin_port(made) as port:
        reply = await ask(port, "/metrics", Accept=accept)
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith(content_type)
    families = list(reading(reply.text))
    assert len(families) > 30
    for family in families:
        assert family.name.startswith("mergerouter_")
        assert family.documentation, family.name


@pytest.mark.parametrize(
    ("down", "path", "status"),
    [("north", "/readyz", 503), ("north", "/readyz?shards=optional", 200),
     ("config", "/readyz?shards=optional", 503)],
)  # fmt: skip
async def test_readiness_names_the_servers_that_do_not_answer(
    down: str, path: str, status: int
) -> None:
    async with watched_facade() as made, admin_port(made) as port:
        checks = fixed_checks(made)
        checks.fails(down, "no answer within 3 s")
        ready = await ask(port, path)
        assert (await ask(port, "/healthz")).status == 200
    assert ready.status == status
    assert down in ready.text
    assert "no answer within 3 s" in ready.text


async def test_slow_pages_delay_no_probe() -> None:
    async with watched_facade() as made:
        slow, begun = asyncio.Event(), asyncio.Semaphore(0)

        async def collect(details: bool) -> RouterStatus:
            if details:
                begun.release()
                await slow.wait()
            return await collect_own(made.process, details)

        async with server.AdminServer(collect) as admin, asyncio.TaskGroup() as asking:
            port = await admin.listen(["127.0.0.1"], 0)
            pages = [asking.create_task(ask(port, "/")) for _ in range(4)]
            for _page in pages:
                await begun.acquire()
            for probe in ("/healthz", "/readyz"):
                assert (await ask(port, probe)).status == 200
            slow.set()
    assert [page.result().status for page in pages] == [200] * 4


async def test_a_router_that_shuts_down_is_not_ready() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        made.process.server.topology.quiesce(asyncio.get_running_loop().time() + 10)
        ready = await ask(port, "/readyz")
    assert (ready.status, ready.text) == (503, "the router is shutting down\n")


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": basic("secret")}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": basic("wrong")}, 401),
        ({"Authorization": "Basic ???"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer \u00e4"}, 401),
    ],
    ids=["none", "bearer", "basic", "wrong", "wrong-basic", "damaged", "empty", "not-ascii"],
)
async def test_the_token_protects_all_but_the_probes(
    headers: Mapping[str, str], status: int
) -> None:
    async with watched_facade() as made, admin_port(made, "secret") as port:
        assert (await ask(port, "/metrics", **headers)).status == status
        assert (await ask(port, "/no-such-page")).status == 401
        for probe in ("/healthz", "/readyz"):
            assert (await ask(port, probe)).status == 200


async def test_half_requests_neither_take_all_connections_nor_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_LIFETIME", 0.3)
    async with facade() as made, admin_port(made) as port:
        before = len(os.listdir("/proc/self/fd"))
        halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _reader, writer in halves:
            writer.write(b"GET / HTTP/1.1\r\nHost:")
        assert (await ask(port, "/healthz")).status == 200
        taken = len(os.listdir("/proc/self/fd")) - before - len(halves)
        assert taken <= server._MOST_CONNECTIONS
        for reader, writer in halves:
            await ended(reader)
            writer.close()


async def ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            await reader.read()


_END = b" HTTP/1.1\r\nHost: router\r\n"
BAD_REQUESTS = {
    b"GARBAGE\r\n\r\n": b"400",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n": b"400",
    b"GET / HTTP/9.9\r\n\r\n": b"400",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": b"400",
    b"GET / HTTP/1.1\r\nHost\r\n\r\n": b"400",
    b"GET /" + bytes(20000) + _END + b"\r\n": b"400",
    b"GET /" + _END + b"A: " + b"x" * 20000 + b"\r\n\r\n": b"400",
    b"GET http://[" + _END + b"\r\n": b"400",
    b"GET /\xff" + _END + b"\r\n": b"400",
    b"GET /" + _END + b"Host: again\r\n\r\n": b"400",
    b"GET /" + _END + b"A\x00b: c\r\n\r\n": b"400",
    b"GET /" + _END + b"Cookie: \xff=\x01\r\n\r\n": b"400",
    b"POST /" + _END + b"Content-Length: -1\r\n\r\n": b"400",
    b"POST /" + _END + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n": b"400",
    b"GET /healthz" + _END + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nab": b"400",
    b"GET /healthz" + _END + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab": b"200",
    **{
        b"GET /" + _END + b"Authorization: " + sent + b"\r\n\r\n": b"401"
        for sent in (b"Basic \xff", b"Basic /w==", b"Bearer \xff", b"Basic", b"\xff")
    },
}
"""What a client may send without the token, and the status that it gets."""


async def test_bad_requests_are_answered_and_logged_in_few_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with capture_logs() as logged:
        async with facade() as made, admin_port(made, "token") as port:
            for sent, status in BAD_REQUESTS.items():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                assert (await reader.readline()).split()[1] == status, sent[:80]
                await ended(reader)
                writer.close()
    assert caplog.records == []
    warned = [each for each in logged if each["log_level"] != "info"]
    assert {each["log_level"] for each in warned} == {"warning"}
    assert not [each for each in warned if "exc_info" in each]
    # Repeats drops lines with the same words, which what a client sends must not change.
    assert len({each["event"] for each in warned}) == 1
    assert len({each["reason"] for each in warned}) < 8


async def test_a_client_that_has_gone_before_its_answer_makes_no_line() -> None:
    with capture_logs() as logged:
        async with facade() as made, admin_port(made, "token") as port:
            for _ in range(100):
                _reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /" + _END + b"Expect: 100-continue\r\n\r\n")
                writer.transport.abort()
            assert (await ask(port, "/healthz")).status == 200
    assert [each for each in logged if each["log_level"] != "info"] == []


async def test_an_accept_header_without_a_format_gets_the_usual_one() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        for accept in ("application/openmetrics-text; version=x", "text/plain; version=", ";;,"):
            answer = await ask(port, "/metrics", Accept=accept)
            assert answer.status == 200
            assert samples(answer.text)


async def test_the_end_does_not_wait_for_silent_clients() -> None:
    async with facade() as made, admin_port(made) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await ended(reader)
    writer.close()
