"""Logins, right and wrong: the router answers each step as mongos does."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from bson import Int64
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, on_real_servers
from tests.harness.raw_client import RawClient
from tests.integration.security.clients import Servers, client, port_of, stream

NONCE = "0123456789abcdefghijklmnopqrstuv"
COMMANDS = ["saslStart", "saslContinue", "hello", "ping", "aggregate", "logout", "connectionStatus"]
COMPARED = ("ok", "code", "codeName", "errmsg", "done", "saslSupportedMechs")
FORGED = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
SERVER_NONCE = "<the server's nonce>"

names = st.sampled_from(["reader", "stranger", "", "re=2Cader", "re=ader", "a,b", "ü", "x" * 300])
others = st.none() | st.integers(-1, 5) | st.booleans() | st.just({}) | st.just([])


@st.composite
def first_messages(draw: st.DrawFn) -> str:
    """Return a client's first message, right or wrong in one of its parts."""
    header = draw(
        st.sampled_from(["n,,", "n,,", "n,,", "y,,", "p=tls-unique,,", "n,a=x,", "", ","])
    )
    nonce = draw(st.sampled_from([NONCE, NONCE, NONCE, "short", "", "n,m", "\u00e9" * 20]))
    text = f"{header}n={draw(names)},r={nonce}{draw(st.sampled_from(['', '', '', ',x=y']))}"
    return text[: draw(st.sampled_from([len(text), len(text), len(text) // 2, 3, 1]))]


@st.composite
def final_messages(draw: st.DrawFn) -> str:
    """Return a client's final message with a forged proof; the nonce is filled in later."""
    binding = draw(st.sampled_from(["biws", "biws", "eSws", "", "="]))
    nonce = draw(st.sampled_from([SERVER_NONCE, SERVER_NONCE, SERVER_NONCE + "x", NONCE, ""]))
    proof = draw(st.sampled_from([f",p={FORGED}", ",p=AAAA", ",p=", ",p=\u00e9", ""]))
    return f"c={binding},r={nonce}{proof}"


payloads = st.one_of(
    first_messages().map(str.encode),
    first_messages(),
    final_messages().map(str.encode),
    st.binary(max_size=200),
    st.sampled_from(
        [b"", b"\0", b"x" * 12_000, b"," * 5000, b"n,,n=" + b"u" * 8000 + b",r=" + b"r" * 30]
    ),
    others,
)
mechanisms = st.sampled_from(
    ["SCRAM-SHA-256", "SCRAM-SHA-256", "SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN", "GSSAPI",
     "MONGODB-AWS", "scram-sha-256", "", "x" * 100]
)  # fmt: skip
starts = st.fixed_dictionaries(
    {"saslStart": st.just(1), "mechanism": mechanisms | others, "payload": payloads},
    optional={
        "options": st.sampled_from([{"skipEmptyExchange": True}, {}, 5, {"other": 1}]),
        "autoAuthorize": st.just(1),
        "unknown": st.just(1),
    },
)
valid_starts = st.fixed_dictionaries(
    {
        "saslStart": st.just(1),
        "mechanism": st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-1"]),
        "payload": st.just(f"n,,n=reader,r={NONCE}".encode()),
    }
)
continuations = st.fixed_dictionaries(
    {
        "saslContinue": st.just(1),
        "conversationId": st.sampled_from([1, 1, 1, 2, Int64(1), 1.0, "1", None]),
        "payload": final_messages().map(str.encode) | payloads,
    }
)
hellos = st.fixed_dictionaries(
    {"hello": st.just(1)},
    optional={
        "saslSupportedMechs": st.sampled_from(["admin.reader", "admin.stranger", "x", ".", 5]),
        "speculativeAuthenticate": valid_starts.map(lambda start: {**start, "db": "admin"})
        | starts.map(lambda start: {**start, "db": "admin"}),
    },
)
plain = st.sampled_from([{"ping": 1}, stream("c"), {"logout": 1}, {"connectionStatus": 1}])
steps = st.tuples(
    st.sampled_from(["admin", "admin", "db", "$external"]),
    st.one_of(valid_starts, starts, continuations, continuations, hellos, plain),
)


def filled_in(value: Any, nonce: str) -> Any:
    """Return a payload with the nonce that the server sent."""
    if isinstance(value, bytes):
        return value.replace(SERVER_NONCE.encode(), nonce.encode())
    return value.replace(SERVER_NONCE, nonce) if isinstance(value, str) else value


async def answers(port: int, sequence: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return what a server answers to each step on one connection."""
    nonce, found = NONCE, list[Any]()
    async with await RawClient.connect(port) as raw:
        for database, step in sequence:
            sent = {name: filled_in(value, nonce) for name, value in step.items()}
            try:
                reply = await raw.command(database, sent)
            except EOFError:
                found.append("closed")
                break
            started = reply.get("speculativeAuthenticate", reply)
            payload = started.get("payload")
            if isinstance(payload, bytes) and payload.startswith(b"r="):
                nonce = payload.decode().split(",")[0].removeprefix("r=")
            reply.get("saslSupportedMechs", []).sort()
            shown = {name: reply.get(name) for name in COMPARED}
            if next(iter(step)) not in COMMANDS:
                assert shown["code"] in (13, 59)
                shown = {}  # alone, the router asks for the login first (docs/security.md)
            found.append((shown, "speculativeAuthenticate" in reply))
    return found


@on_real_servers("checks of malformed logins")
@pytest.mark.parametrize("kind", ["router", "alone"])
def test_any_sequence_of_steps_is_answered_as_by_mongos(servers: Servers, kind: str) -> None:
    ports = [port_of(servers.mongos), port_of(getattr(servers, kind))]

    @settings(
        max_examples=150,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=1, max_size=5))
    @example([("admin", {"saslStart": 1, "mechanism": 5, "unknown": 1, "payload": b""})])
    @example([("admin", {"saslStart": 1, "unknown": 1, "mechanism": 5, "payload": b""})])
    def compare(sequence: list[tuple[str, dict[str, Any]]]) -> None:
        async def both() -> list[list[Any]]:
            return [await answers(port, sequence) for port in ports]

        of_mongos, of_router = asyncio.run(both())
        assert of_router == of_mongos

    compare()


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param("SCRAM-SHA-1", marks=on_real_servers("SCRAM-SHA-1")), "SCRAM-SHA-256"],
)
@pytest.mark.parametrize("kind", ["router", "alone"])
def test_each_mechanism_logs_in(servers: Servers, kind: str, mechanism: str) -> None:
    address = getattr(servers, kind)
    with client(address, "reader", authMechanism=mechanism) as reader:
        status = reader.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        assert status["authenticatedUsers"] == [{"user": "reader", "db": "admin"}]
        assert status["authenticatedUserRoles"] == [{"role": "read", "db": "db"}]
        resources = [each["resource"] for each in status["authenticatedUserPrivileges"]]
        assert {"db": "db", "collection": ""} in resources
        with reader.db.c.watch(max_await_time_ms=200) as watching:
            with client(servers.mongos, "writer") as writer:
                inserted = writer.db.c.insert_one({}).inserted_id
            assert watching.next()["documentKey"] == {"_id": inserted}
            with client(address, "monitor") as monitor:
                status = monitor.admin.command("serverStatus")["mergerouter"]
            assert "reader@admin" in [each["user"] for each in status["users"] if each["cursors"]]
    wrong = {"username": "reader", "password": "x", "authMechanism": mechanism}
    with (
        Client(f"mongodb://{address}/", **wrong) as refused,
        pytest.raises(OperationFailure, match="Authentication failed") as failure,
    ):
        refused.admin.command("ping")
    assert failure.value.code == 18
