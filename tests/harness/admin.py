"""A router's status on top of fake cursors, and requests to admin ports."""

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, cast

from bson.timestamp import Timestamp

from router.admin.router_status import collect_own
from router.admin.server import AdminServer
from router.commands.job_reports import JobReport
from router.tls.handshake import Handshakes
from shard_client.wire.connection_pool import PoolCounts
from tests.doubles.fake_clusters import FixedChecks
from tests.harness.facade import Facade, facade
from tests.harness.until import PATIENCE

NOW = 1795163230


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


def get(port: int, path: str, *, tls: ssl.SSLContext | None = None, **headers: str) -> Response:
    """Send a request to a local admin port; underscores in header names become hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    scheme = "http" if tls is None else "https"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}", headers=named)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=tls) as reply:
            return Response(reply.status, dict(reply.headers), reply.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Response(error.code, dict(error.headers), error.read().decode())


async def ask(port: int, path: str, **headers: Any) -> Response:
    """Send a request without TLS, as `get` does."""
    return await asyncio.to_thread(get, port, path, **headers)


def remote(target: str, *, behind: int, **fields: Any) -> dict[str, Any]:
    return {
        "target": target,
        "address": f"{target}.example:27018",
        "state": "reading",
        "watermark": Timestamp(NOW - behind, 1),
        "events": 10,
        "bufferedBytes": 100,
        "reopened": 0,
        "noopCommands": 2,
        **fields,
    }


def stream(*remotes: Mapping[str, Any], holder: str, reason: str) -> dict[str, Any]:
    return {
        "cursorIds": [7],
        "stream": 3,
        "pipeline": '{fullDocument: "updateLookup"}, {$match: {"ns.coll": "orders"}}',
        "namespace": "shop.orders",
        "events": 20,
        "heldBytes": 200,
        "bufferedBytes": 200,
        "waitedFor": True,
        "slowestShard": holder,
        "slowestReason": reason,
        "waiting": True,
        "remotes": list(remotes),
    }


def jobs(now: datetime) -> list[JobReport]:
    """Return jobs: one waits for a shard, one has events, one has failed, is silent, has ended."""
    name, owner = "/srv/tables/", "spark, 10.0.0.7"
    through = Timestamp(NOW - 4, 1)
    silent = now - timedelta(seconds=200)
    return [
        JobReport(f"{name}items", owner, "shop.items", now, 12, through, 0.0, waits=True),
        JobReport(f"{name}silent", owner, "shop.$cmd.aggregate", silent, 7, through, 0.5),
        JobReport(f"{name}orders", owner, "shop.orders", now, 1204, through, 1310.0),
        JobReport(f"{name}ended", owner, "shop.orders", now, 3, ended=True),
        JobReport(
            f"{name}payments", owner, "shop.payments", now, error="No space left on device: /srv"
        ),
    ]


class FixedCertificates:
    """A router's certificate that expires a day after NOW."""

    def describe(self) -> dict[str, object]:
        expires = datetime.fromtimestamp(NOW + 24 * 3600, UTC)
        return {"SSLServerCertificateExpirationDate": expires}


def fixed_checks(made: Facade) -> FixedChecks:
    """Return the checks of a watched facade, to change what they find."""
    return cast(FixedChecks, made.process.checks)


@asynccontextmanager
async def watched_facade(**fields: Any) -> AsyncIterator[Facade]:
    """Return a facade with one stream on two shards, of which north is behind."""
    checks: Any = FixedChecks(NOW - 3600)
    certificates: Any = FixedCertificates()
    now = partial(datetime.fromtimestamp, NOW, UTC)
    shown = {"checks": checks, "certificates": certificates, "now": now}
    async with facade(**{**shown, **fields}) as made:
        made.cursors.described = [
            stream(
                remote("config", behind=1, topology=True),
                remote("north", behind=40, failingMillis=2500, error="connection refused"),
                remote("south", behind=3),
                holder="north",
                reason="reconnecting",
            )
        ]
        for target in ("config", "north", "south"):
            load = made.cursors.loads.of(target)
            load.openings, load.get_mores, load.noop_commands = 2, 50, 2
        made.cursors.connections["north.example", 27018] = PoolCounts(2, 1, 5)
        made.cursors.admission.refused["maxStreams"] += 1
        made.process.counters.errors = {43: 2, 99999: 1}
        for report in jobs(made.process.now()):
            made.process.jobs.add(report)
        yield made


@asynccontextmanager
async def admin_port(
    made: Facade, token: str | None = None, *, handshakes: Handshakes | None = None
) -> AsyncIterator[int]:
    """Serve a facade's admin port in the test's own loop; yield the port."""
    async with AdminServer(
        partial(collect_own, made.process), token, handshakes=handshakes
    ) as server:
        yield await server.listen(["127.0.0.1"], 0)
