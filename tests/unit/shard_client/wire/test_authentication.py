"""Logins of the router on servers, and TLS to them."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bson import Binary

from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.wire.authentication import Credentials, log_in, read_key_file, read_secret_file
from shard_client.wire.connection import Connection
from shard_client.wire.tls import Certificate, TlsContexts, TlsFiles
from tests.doubles.scram_server import ScramServer
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.certificates import Authority, only_tls_1_1
from tests.harness.until import PATIENCE


def credentials(*passwords: str) -> Credentials:
    return Credentials("router", "admin", passwords or ("secret",))


@pytest.mark.parametrize("skips", [True, False])
async def test_a_user_logs_in(skips: bool) -> None:
    server = ScramServer(skips_empty_exchange=skips)
    await log_in(server.command, credentials(), timeout=PATIENCE)
    assert {command["$db"] for command in server.commands} == {"admin"}
    assert len(server.commands) == (2 if skips else 3)
    assert b"secret" not in b"".join(bytes(command["payload"]) for command in server.commands)


async def test_each_key_of_a_key_file_is_tried() -> None:
    await log_in(ScramServer("second").command, credentials("first", "second"), timeout=PATIENCE)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"v=",
        b"r=foreign,s=c2FsdHNhbHRzYWx0,i=4096",
        b"r=x,s=c2FsdHNhbHRzYWx0,i=1",
        b"v=d3Jvbmc=",
    ],
)
async def test_a_server_without_the_password_is_refused(payload: bytes) -> None:
    server = ScramServer()
    server.changed = {"payload": Binary(payload)}
    with pytest.raises(CommandError) as failure:
        await log_in(server.command, credentials(), timeout=PATIENCE)
    assert failure.value.code == 18
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("iterations", ["1", "4095", "10000001", "9" * 5000, "-1", "x", ""])
async def test_iteration_counts_out_of_bounds_are_refused(iterations: str) -> None:
    """Few make the password easy to guess, many would occupy a thread for ever."""

    server = ScramServer()
    server.iterations = iterations
    with pytest.raises(CommandError, match="iterations") as failure:
        await log_in(server.command, credentials(), timeout=PATIENCE)
    assert failure.value.code == 18
    assert len(server.commands) == 1


@pytest.mark.parametrize("payload", [None, 5, "text", b"\xff\xfe"])
async def test_malformed_replies_are_refused(payload: Any) -> None:
    server = ScramServer()
    server.changed = {"payload": payload}
    with pytest.raises(ProtocolError):
        await log_in(server.command, credentials(), timeout=PATIENCE)


def key_file(folder: Path, content: str, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ("abcdef", ("abcdef",)),
        (" abc\n def== \n", ("abcdef==",)),
        ("- abcdef\n- ghijkl\n", ("abcdef", "ghijkl")),
        ("['abc def']", ("abcdef",)),
    ],
)
def test_key_files_are_read(tmp_path: Path, content: str, keys: tuple[str, ...]) -> None:
    login = read_key_file(key_file(tmp_path, content))
    assert (login.user, login.source, login.passwords) == ("__system", "local", keys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("abc", "must be between 6 and 1024"),
        ("a" * 1025, "must be between 6 and 1024"),
        ("s3cret!!", "invalid char"),
        ("- [s3cret]", "not a list of keys"),
        ("[s3cret", "not a valid list"),
        ("[]", "holds no key"),
    ],
)
def test_bad_key_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as failure:
        read_key_file(key_file(tmp_path, content))
    assert "s3cret" not in str(failure.value).replace(str(tmp_path), "")


def test_secrets_that_others_can_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too open"):
        read_key_file(key_file(tmp_path, "abcdef", 0o640))
    with pytest.raises(ValueError, match="too large"):
        read_secret_file(key_file(tmp_path, "a" * 70_000))


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ("not authorized on db to execute command { " + "x" * 5000, "what it lacks: mergerouter"),
        (
            "You are connecting to a sharded cluster improperly by connecting directly to a shard.",
            "the role directShardOperations, which MongoDB 8.0",
        ),
    ],
)
async def test_a_refused_command_names_the_router_s_user_and_the_remedy(
    said: str, lacks: str
) -> None:
    login = ScramServer()

    async def answer(asked: Asked) -> None:
        reply: dict[str, Any] = {"ok": 0.0, "code": 13, "codeName": "Unauthorized", "errmsg": said}
        if "payload" in asked.command:
            reply = await login.command("admin", asked.command, timeout=None)
        asked.reply(reply)

    async with scripted_server(answer) as server:
        address = ("127.0.0.1", server.port)
        connection = await Connection.open(address, timeout=PATIENCE, credentials=credentials())
        with pytest.raises(CommandError) as failure:
            await connection.command("config", {"find": "shards"}, timeout=PATIENCE)
        connection.abort()
    assert failure.value.code == 13
    assert "refuses the router's user router@admin" in failure.value.message
    assert lacks in failure.value.message
    assert len(failure.value.message) < 500


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("foreign"), "foreign")


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return TlsFiles(authority.issue("router"), ca=authority.file)


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def failure(server: ssl.SSLContext | None, files: TlsFiles) -> str:
    """Return the error of a connection to a server with this context."""

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"no TLS")
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0, ssl=server) as listening:
        address = ("127.0.0.1", listening.sockets[0].getsockname()[1])
        with pytest.raises(NetworkError) as raised:
            await Connection.open(address, timeout=PATIENCE, tls=TlsContexts(files).outgoing)
    return str(raised.value)


async def test_a_certificate_for_another_host(authority: Authority, files: TlsFiles) -> None:
    other = serving(authority.issue("other", hosts=("other.example",)))
    assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in await failure(
        other, files
    )
    # The setting lets the handshake succeed: this server then ends the connection.
    allowed = await failure(other, replace(files, invalid_hostnames=True))
    assert "certificate" not in allowed


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("expired", "certificate has expired"),
        ("foreign", "unable to get local issuer certificate"),
        ("revoked", "certificate revoked"),
        ("TLS 1.1", "the connection ended during the TLS handshake"),
    ],
)
async def test_a_bad_server_is_refused(
    authority: Authority, foreign: Authority, files: TlsFiles, fault: str, cause: str
) -> None:
    issuer = foreign if fault == "foreign" else authority
    certificate = issuer.issue("shard", days=-1 if fault == "expired" else 1)
    if fault == "revoked":
        files = replace(files, crl=authority.revoke(certificate))
    server = serving(certificate)
    if fault == "TLS 1.1":
        only_tls_1_1(server)
    assert cause in await failure(server, files)


def test_a_subject_is_written_as_servers_write_it(authority: Authority) -> None:
    subject = (("O", "tests"), ("OU", "clients"), ("emailAddress", "a,b@x"))
    certificate = Certificate.read(authority.issue("alice", subject=subject))
    # What mongod 6.0 has in serverStatus, in logs and as the name of the user.
    assert certificate.subject == "CN=alice,emailAddress=a\\,b@x,OU=clients,O=tests"
    values = {value for _, value in certificate.membership}
    assert values == {"tests", "clients"}
