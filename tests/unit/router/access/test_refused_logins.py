"""A refused login takes the same steps for an unknown user and for a wrong password.

These are the router's own steps; those of the servers differ (docs/security.md).
"""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from router.access.login import ConfigServer, Login
from router.catalog.upstream import ServerLink
from router.fair_limit import FairLimit
from shard_client.errors import CommandError
from shard_client.wire.connection import Address

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

    def serves(self, address: Address) -> bool:
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


@pytest.mark.parametrize("user", [b"known", b"stranger"])
@pytest.mark.parametrize("speculative", [True, False], ids=["speculative", "not speculative"])
@pytest.mark.parametrize("where", ["upstream", "config server"])
async def test_the_router_adds_the_same_steps(
    monkeypatch: pytest.MonkeyPatch,
    delays: list[float],
    user: bytes,
    speculative: bool,
    where: str,
) -> None:
    """One command for each of the client's, one connection, and one delay at the end."""
    server, in_progress = Server(), FairLimit.of_logins(1)
    access: Any = SimpleNamespace(cluster=None, in_progress=in_progress, failed_delay=DELAY)
    monkeypatch.setattr(ConfigServer, "connect", lambda _self: server.connect())
    login = Login(access, "10.0.0.1:5")
    link = ServerLink(server) if where == "upstream" else None  # type: ignore[arg-type]
    taken: list[str] = []
    with pytest.raises(CommandError, match="Authentication failed"):
        await log_in(login, link, user, taken, speculative=speculative)
    assert server.steps == taken
    assert server.connections == 1
    assert delays == [DELAY]
    assert in_progress.held == 0
