"""Refused logins, and signed cluster times: neither tells more than mongos tells.

These are the router's own steps; those of the servers differ (docs/security.md).
"""

import asyncio
import hashlib
import hmac
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from router.access.login import Login, LoginLog, scram_user
from router.access.signing import SignedTimes, SigningKey
from router.access.users import Users
from router.catalog.catalog_primary import CatalogPrimary
from router.limits.fair_limit import FairLimit
from router.privileges import User, UserName
from router.upstream.server_link import ServerLink
from shard_client.errors import CommandError
from shard_client.wire.connection import Address
from tests.harness.until import until

DELAY = 0.4375
REFUSED = CommandError(18, "Authentication failed.")
Step = dict[str, Any]


class Server:
    """Answers logins of one known user as mongod does, none of them with the right password."""

    def __init__(self) -> None:
        self.connections = 0
        self.steps: list[str] = []

    async def connect(self) -> "Connection":
        self.connections += 1
        return Connection(self)

    async def serves(self, address: Address) -> bool:
        return True


class Connection:
    """One connection to the server."""

    address, closed = ("server", 27017), False

    def __init__(self, server: Server) -> None:
        self._server = server

    async def command(
        self, database: str, command: Mapping[str, Any], *, timeout: float | None
    ) -> Step:
        name = next(iter(command))
        self._server.steps.append(name)
        step = command.get("speculativeAuthenticate", {}) if name == "hello" else command
        if b"known" in step.get("payload", b""):
            challenge: Step = {"conversationId": 1, "done": False, "payload": b"challenge"}
            return {"speculativeAuthenticate": challenge} if name == "hello" else challenge
        if name == "hello":
            return {}
        raise REFUSED

    def abort(self) -> None:
        self.closed = True


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The router's delays, which pass at once."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def pass_at_once(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pass_at_once)
    return slept


async def log_in(
    login: Login, link: ServerLink | None, user: bytes, taken: list[str], *, speculative: bool
) -> None:
    """Log in as drivers do; append each step to ``taken``. Raises CommandError."""
    start: Step = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": user}
    challenge = None
    if speculative:
        taken.append("hello")
        asked = {
            "saslSupportedMechs": "admin.x",
            "speculativeAuthenticate": {**start, "db": "admin"},
        }
        challenge = (await login.hello(link, asked)).get("speculativeAuthenticate")
    if challenge is None:
        taken.append("saslStart")
        challenge = await login.converse(link, "admin", start)
    taken.append("saslContinue")
    step = {"saslContinue": 1, "conversationId": 1, "payload": b"wrong"}
    await login.converse(link, "admin", step)


async def test_clients_with_an_unknown_key_wait_for_one_read(monkeypatch: pytest.MonkeyPatch):
    async def fail_late(*_: object) -> None:
        await asyncio.sleep(0.5)
        raise CommandError(133, "no answer")

    cluster = AsyncMock(clock=SimpleNamespace(ordinal=0))
    cluster.command.side_effect = fail_late
    monkeypatch.setattr("router.access.signing._LEAST_PAUSE", 0.4)
    times, later = SignedTimes(cluster), {"hash": b"", "keyId": 1}
    checks = (times.check({"clusterTime": Timestamp(1, 1), "signature": later}) for _ in range(3))
    await asyncio.gather(*checks, return_exceptions=True)
    assert cluster.command.call_count == 1


@pytest.mark.parametrize("refused_seconds", [0.0, 60.0])
async def test_rights_that_are_granted_later_are_used(
    monkeypatch: pytest.MonkeyPatch, refused_seconds: float
) -> None:
    """The right to read the keys of cluster times, and to ask whether users have changed."""
    answers: dict[str, Any] = {}

    async def answer(_target: str, _database: str, command: Step, _timeout: float) -> Step:
        name = next(iter(command))
        if name not in answers:
            raise CommandError(13, "not authorized")
        answers[name] += 1
        return {"cursor": {"firstBatch": []}, "cacheGeneration": 1}

    monkeypatch.setattr("router.access.signing.PAUSE_AFTER_REFUSAL", refused_seconds)
    monkeypatch.setattr("router.access.users.PAUSE_AFTER_REFUSAL", refused_seconds)
    cluster = AsyncMock(clock=SimpleNamespace(ordinal=0))
    cluster.command.side_effect = answer
    times, users = SignedTimes(cluster), Users(cluster, refresh=60.0)
    reading = asyncio.create_task(times.keep_reading())
    await users.invalidate()
    await until(lambda: cluster.command.call_count >= 2)
    answers.update(find=0, _getUserCacheGeneration=0)
    await users.invalidate()
    for _ in range(100):  # turns of the loop are enough: no answer takes any time
        await asyncio.sleep(0)
    reading.cancel()
    asked_again = refused_seconds == 0
    assert bool(answers["find"]) == bool(answers["_getUserCacheGeneration"]) == asked_again


@pytest.mark.parametrize("user", [b"known", b"stranger"])
@pytest.mark.parametrize("speculative", [True, False], ids=["speculative", "not speculative"])
@pytest.mark.parametrize("where", ["upstream", "config server"])
async def test_the_router_adds_the_same_steps(
    monkeypatch: pytest.MonkeyPatch, delays: list[float], user: bytes, speculative: bool, where: str
) -> None:
    """One command for each of the client's, one connection, and one delay at the end."""
    server, in_progress = Server(), FairLimit(1)
    access: Any = SimpleNamespace(
        cluster=SimpleNamespace(catalog="config"), in_progress=in_progress, failed_delay=DELAY
    )
    monkeypatch.setattr(CatalogPrimary, "connect", lambda _self: server.connect())
    monkeypatch.setattr(CatalogPrimary, "serves", AsyncMock(return_value=True))
    login = Login(access, "10.0.0.1:5")
    link = ServerLink(server) if where == "upstream" else None  # type: ignore[arg-type]
    taken: list[str] = []
    with pytest.raises(CommandError, match="Authentication failed"):
        await log_in(login, link, user, taken, speculative=speculative)
    assert server.steps == taken
    assert server.connections == 1
    assert delays == [DELAY]
    assert in_progress.held == 0


async def test_another_user_may_log_in_once_the_user_has_been_dropped() -> None:
    users = SimpleNamespace(get=AsyncMock(side_effect=User))
    access: Any = SimpleNamespace(users=users, in_progress=FairLimit(1))
    login = Login(access, "10.0.0.1:5")
    login._user = first = User(UserName("first", "admin"))
    login.by_certificate = True
    others = {"authInfo": {"authenticatedUsers": [{"user": "other", "db": "admin"}]}}
    link: Any = AsyncMock(pin=Mock(), command=AsyncMock(return_value={"done": True, **others}))
    with pytest.raises(CommandError, match="only be authenticated once"):
        await login.converse(link, "admin", {"saslStart": 1})
    first.exists = False
    await login.converse(link, "admin", {"saslStart": 1})
    assert (str(login.user), login.by_certificate) == ("other@admin", False)


@given(st.binary(max_size=2000) | st.text() | st.none() | st.integers())
def test_any_payload_gives_a_short_name(payload: object) -> None:
    assert len(scram_user(payload)) <= 256


def test_long_fields_are_cut() -> None:
    lines = LoginLog("127.0.0.1:5")
    with capture_logs() as logged:
        command = {"mechanism": "x" * 10_000, "payload": b"n,,n=" + b"u" * 10_000 + b",r=x"}
        lines.record_begin("d" * 10_000, command, speculative=False)
        lines.record_failure(CommandError(18, "Authentication failed."))
    (line,) = logged
    assert len(str(line)) < 1500
    assert line["error"] == "AuthenticationFailed: Authentication failed."


def test_each_login_is_a_span_without_its_user(exported: InMemorySpanExporter) -> None:
    lines = LoginLog("127.0.0.1:5")
    command = {"mechanism": "SCRAM-SHA-256", "payload": b"n,,n=alice,r=x"}
    lines.record_begin("admin", command, speculative=True)
    lines.record_success("alice", "admin")
    lines.record_begin("admin", command, speculative=False)
    lines.record_failure(CommandError(18, "alice failed", code_name="AuthenticationFailed"))
    lines.record_begin("admin", {"mechanism": "alice"}, speculative=False)
    lines.record_failure()
    lines.record_end()
    lines.record_begin("admin", command, speculative=False)
    lines.record_end()
    right, wrong, other, abandoned = exported.get_finished_spans()
    assert right.attributes == {
        "db.system.name": "mongodb",
        "mergerouter.mechanism": "SCRAM-SHA-256",
        "mergerouter.speculative": True,
    }
    assert right.status.is_unset
    assert wrong.attributes["error.type"] == "AuthenticationFailed"
    assert other.attributes["mergerouter.mechanism"] == "other"
    assert other.attributes["error.type"] == "AuthenticationFailed"
    assert abandoned.attributes["mergerouter.abandoned"] is True
    assert not any("alice" in each.to_json() for each in exported.get_finished_spans())


def test_signatures_cover_a_range_of_times() -> None:
    key = SigningKey(7, b"k" * 20, 0)
    first, last = 5 << 32, (5 << 32) | 0xFFFF
    whole = hmac.new(b"k" * 20, struct.pack("<Q", last), hashlib.sha1).digest()
    assert key.sign(first) == key.sign(last) == whole
    assert key.sign(last + 1) != whole
