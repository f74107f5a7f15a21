"""Handshakes: the accepted and refused clients, and the cause in the log."""

import asyncio
import socket
import ssl
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from structlog.testing import capture_logs

from router.config.tls import Tls
from router.limits.client_limits import ClientLimits
from router.limits.connection_limit import ConnectionLimit
from router.tls.handshake import ONLY_TLS, Handshakes
from shard_client.wire.connection import Connection
from shard_client.wire.documents import encode
from shard_client.wire.frames import build_msg
from shard_client.wire.tls import TlsContexts
from tests.harness.certificates import Authority, only_tls_1_1
from tests.harness.facade import Facade, facade
from tests.harness.until import PATIENCE, until

VALIDATION = "SSL peer certificate validation failed: "


class Certificates:
    """An authority, the files that tests need, and contexts of clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue("router")
        self.client = self.authority.issue("alice", subject=(("O", "tests"), ("OU", "clients")))
        self.expired = self.authority.issue("expired", days=-1)
        self.revoked = self.authority.issue("revoked")
        self.crl = self.authority.revoke(self.revoked)
        self.foreign = Authority(folder, "foreign").issue("mallory")

    def tls(self, mode: str = "requireTLS", **settings: Any) -> Tls:
        given = {"certificateKeyFile": self.server, "CAFile": self.authority.file}
        return Tls(**{"mode": mode, **given, **settings})

    def client_context(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.file)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def listening(settings: Tls, timeout: float = 10.0, **fields: Any) -> AsyncIterator[Facade]:
    contexts = TlsContexts(settings.files())
    required = settings.mode == "requireTLS"
    handshakes = Handshakes(lambda: contexts.incoming, required=required, timeout=timeout)
    async with facade(handshakes=handshakes, **fields) as router:
        yield router


def waiting(router: Facade) -> int:
    """Return the number of handshakes that have not ended, in a test without other clients."""
    return router.listener._limit.open


async def ping(port: int, context: ssl.SSLContext | None) -> Any:
    connection = await Connection.open(("127.0.0.1", port), timeout=PATIENCE, tls=context)
    try:
        return (await connection.command("admin", {"ping": 1}, timeout=PATIENCE))["ok"]
    finally:
        connection.abort()


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection; return whether no byte came before it."""
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


def refusals(logged: list[Any]) -> list[str]:
    return [line["error"]["errmsg"] for line in logged if line.get("id") == 22988]


async def refused(port: int, context: ssl.SSLContext | None) -> str:
    """Connect, expect no answer, and return the cause in the log."""
    with capture_logs() as logged:
        assert await asyncio.to_thread(greet, port, context) == b""
        await until(lambda: refusals(logged))
    (cause,) = refusals(logged)
    return cause


def greet(port: int, context: ssl.SSLContext | None) -> bytes:
    """Send a hello as a driver does; return the first byte of the answer, none if refused."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
            if context is None:
                plain.sendall(message(hello=1))
                return plain.recv(1)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
                encrypted.sendall(message(hello=1))
                return encrypted.recv(1)
    except (ssl.SSLError, ConnectionError):
        return b""


def message(**command: Any) -> bytes:
    return build_msg(encode({**command, "$db": "admin"}), request_id=1)


async def test_a_client_that_sends_one_byte_costs_nothing_until_its_deadline() -> None:
    looks: list[int] = []

    class Watched(socket.socket):
        def recv(self, *args: Any) -> bytes:
            looks.append(1)
            return super().recv(*args)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _address = listening.accept()
    with client, Watched(fileno=accepted.detach()) as watched:
        watched.setblocking(False)
        handshakes = Handshakes(ssl.create_default_context, required=True, timeout=0.3)
        client.send(b"\x16")
        assert not await handshakes.connect(watched, asyncio.Protocol)
    assert len(looks) == 1


async def test_a_length_that_looks_like_a_handshake_is_read_as_a_length(
    files: Certificates,
) -> None:
    """A plain hello of 790 bytes begins with the bytes 22 and 3."""
    async with listening(files.tls("allowTLS")) as router:
        empty = len(message(hello=1, comment=""))
        hello = message(hello=1, comment="x" * (790 - empty))
        assert hello[:2] == b"\x16\x03"
        async with await router.client() as client:
            client.send_bytes(hello[:2])
            await client.writer.drain()
            client.send_bytes(hello[2:])
            assert (await client.receive())["ok"] == 1


def old_protocol(files: Certificates) -> ssl.SSLContext:
    context = files.client_context(files.client)
    only_tls_1_1(context)
    return context


def weak_cipher(files: Certificates) -> ssl.SSLContext:
    context = files.client_context(files.client)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES128-SHA")
    return context


def distrusting(files: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.foreign)
    context.load_cert_chain(files.client)
    return context


CASES: dict[str, tuple[Callable[[Certificates], ssl.SSLContext | None], str]] = {
    "plain": (lambda files: None, ONLY_TLS),
    "no certificate": (
        lambda files: files.client_context(),
        "no SSL certificate provided by peer; connection rejected",
    ),
    "foreign": (
        lambda files: files.client_context(files.foreign),
        VALIDATION + "unable to get local issuer certificate",
    ),
    "expired": (
        lambda files: files.client_context(files.expired),
        VALIDATION + "certificate has expired",
    ),
    "revoked": (
        lambda files: files.client_context(files.revoked),
        VALIDATION + "certificate revoked",
    ),
    "TLS 1.1": (old_protocol, "SSL handshake failed, as client requested disabled protocol"),
    "weak cipher": (
        weak_cipher,
        "SSL handshake failed: the client offers none of the server's ciphers",
    ),
    "distrusts": (distrusting, "SSL handshake failed: tlsv1 alert unknown ca"),
}


@pytest.mark.parametrize("case", CASES)
async def test_each_refusal_is_logged_with_its_cause(files: Certificates, case: str) -> None:
    context, cause = CASES[case]
    async with listening(files.tls(CRLFile=files.crl)) as router:
        assert await refused(router.port, context(files)) == cause
        # Other clients are still served.
        assert await ping(router.port, files.client_context(files.client)) == 1


@pytest.mark.skipif(which("openssl") is None, reason="openssl's client renegotiates")
async def test_clients_cannot_renegotiate(files: Certificates) -> None:
    async with listening(files.tls()) as router:
        client = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{router.port}"),
            *("-cert", files.client, "-key", files.client),
            stdin=PIPE, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        # A line that is only R makes the client renegotiate; the input's end makes it leave.
        printed, _ = await client.communicate(b"R\n")
    assert b"RENEGOTIATING" in printed
    assert b"no renegotiation" in printed


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_stalled_handshake_ends(files: Certificates, sent: bytes) -> None:
    async with listening(files.tls(), timeout=0.3) as router:
        with capture_logs() as logged:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(sent)
            assert await is_cut(reader)
            writer.close()
            await until(lambda: refusals(logged))
        assert refusals(logged) == ["SSL handshake failed: it took longer than 0.3 s"]
        assert waiting(router) == 0


async def test_handshakes_count_as_connections(files: Certificates) -> None:
    async with listening(files.tls(), client_limits=ClientLimits(connections=1)) as router:
        _, silent = await asyncio.open_connection("127.0.0.1", router.port)
        await until(lambda: waiting(router))
        with capture_logs() as logged:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            assert await is_cut(reader)
            writer.close()
        assert 22942 in [line.get("id") for line in logged]
        silent.close()


async def test_a_stopped_listener_ends_handshakes(files: Certificates) -> None:
    async with listening(files.tls()) as router:
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        await until(lambda: waiting(router))
        router.listener.close()
        assert await is_cut(reader)
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", router.port)


async def test_an_error_with_one_client_leaves_the_port_open(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(files.tls()) as router:
        with monkeypatch.context() as planted, capture_logs() as logged:
            planted.setattr(ConnectionLimit, "admit", lambda *_: 1 / 0)
            assert await asyncio.to_thread(greet, router.port, None) == b""
            await until(lambda: "Unexpected error" in [line["event"] for line in logged])
        assert await ping(router.port, files.client_context(files.client)) == 1
