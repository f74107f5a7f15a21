"""What a TLS server accepts, and whether that is weak: ``python -m tests.tls_scan HOST:PORT …``.

It sends handmade first messages of handshakes and reads the server's choice, as testssl does. So it
also offers what this machine's OpenSSL cannot speak. A certificate is not needed, since the server
chooses before it asks for one.

Sources: RFC 5246 and 8446 (messages), RFC 5746 (secure renegotiation), RFC 3749 (compression).
"""

import argparse
import secrets
import shutil
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

Address = tuple[str, int]

_PURPOSE = "List the protocols and ciphers that TLS servers accept, and what of it is weak."

SSL3, TLS1_0, TLS1_1, TLS1_2, TLS1_3 = range(0x0300, 0x0305)
VERSIONS: Final = {
    SSL3: "SSL 3", TLS1_0: "TLS 1.0", TLS1_1: "TLS 1.1", TLS1_2: "TLS 1.2", TLS1_3: "TLS 1.3",
}  # fmt: skip
CIPHERS: Final = (
    *range(0x0001, 0x00FF), *range(0xC001, 0xC100), *range(0xCCA8, 0xCCAF), *range(0xFEFE, 0xFF00),
)  # fmt: skip
"""The registered numbers of ciphers before TLS 1.3, and two of the old export kind."""

_CIPHERS_1_3 = range(0x1301, 0x1306)
_NULL, _DEFLATE = 0, 1
_SECURE_RENEGOTIATION, _SUPPORTED_VERSIONS = 0xFF01, 43
_X25519 = 0x001D
_GROUPS = (_X25519, 0x0017, 0x0018, 0x0019, 0x0100)
_SIGNATURES = (
    0x0403, 0x0503, 0x0603, 0x0807, 0x0808, 0x0804, 0x0805, 0x0806, 0x0401, 0x0501, 0x0601, 0x0203,
    0x0201,
)  # fmt: skip
_TIMEOUT = 10.0
_RECORD = struct.Struct(">BHH")
_HANDSHAKE, _CLIENT_HELLO, _SERVER_HELLO = 22, 1, 2


class Choice(NamedTuple):
    """What a server has chosen of an offer; ``extensions`` are the numbers of its extensions."""

    version: int
    cipher: int
    compression: int
    extensions: frozenset[int]


def offer(
    address: Address, version: int, ciphers: Iterable[int], compressions: Sequence[int] = (_NULL,)
) -> Choice | None:
    """Return the server's choice; None if it refuses the offer.

    Args:
        address: the server's host and port.
        version: the only version on offer, as in VERSIONS.
        ciphers: the numbers of the ciphers on offer.
        compressions: the numbers of the compressions on offer.

    Raises:
        OSError: the server cannot be reached.
        ValueError: its answer is no TLS.
    """
    with socket.create_connection(address, timeout=_TIMEOUT) as connection:
        connection.sendall(_client_hello(version, ciphers, compressions))
        with connection.makefile("rb") as answers:
            try:
                return _choice(answers.read(_RECORD.size), answers.read)
            except ConnectionError:
                return None


def accepted_ciphers(address: Address, version: int) -> list[int]:
    """Return the ciphers that the server accepts with ``version``, in the order of its choice."""
    left = list(_CIPHERS_1_3 if version == TLS1_3 else CIPHERS)
    accepted: list[int] = []
    while left and (choice := offer(address, version, left)) is not None:
        if choice.version != version or choice.cipher not in left:
            raise ValueError(f"the server chose {choice}, which was not on offer")
        accepted.append(choice.cipher)
        left.remove(choice.cipher)
    return accepted


def cipher_names() -> dict[int, str]:
    """Return OpenSSL's names of ciphers by number."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return {each["id"] & 0xFFFF: each["name"] for each in context.get_ciphers()}


def weaknesses(address: Address) -> list[str]:
    """Return what is weak about a server, as sentences; nothing if all is well."""
    found: list[str] = []
    names = cipher_names()
    accepted = {version: accepted_ciphers(address, version) for version in VERSIONS}
    found += [
        f"{VERSIONS[version]} is accepted"
        for version in (SSL3, TLS1_0, TLS1_1)
        if accepted[version]
    ]
    if not accepted[TLS1_2] and not accepted[TLS1_3]:
        found.append("neither TLS 1.2 nor TLS 1.3 is accepted")
    for number in accepted[TLS1_2]:
        name = names.get(number, f"{number:#06x}")
        if not name.startswith(("ECDHE-", "DHE-")):
            found.append(f"{name} has no forward secrecy")
        if name.endswith("-SHA") or {"NULL", "RC4", "DES", "CBC3", "MD5"} & set(name.split("-")):
            found.append(f"{name} is an old cipher")
    if accepted[TLS1_2]:
        choice = offer(address, TLS1_2, CIPHERS, (_DEFLATE, _NULL))
        if choice is None or choice.compression != _NULL:
            found.append("compression is accepted")
        if choice is None or _SECURE_RENEGOTIATION not in choice.extensions:
            found.append("secure renegotiation (RFC 5746) is not supported")
    return found


def renegotiates(address: Address, certificate: Path | None = None) -> bool:
    """Return whether a server lets its clients renegotiate, which costs it much.

    Args:
        address: the server's host and port.
        certificate: the client's certificate and key, if the server requires one.

    Raises:
        FileNotFoundError: this machine has no openssl, whose client does it.
    """
    program = shutil.which("openssl")
    if program is None:
        raise FileNotFoundError("openssl is not installed")
    own = [] if certificate is None else ["-cert", str(certificate), "-key", str(certificate)]
    # A line that is only R makes the client renegotiate; the input's end makes it leave.
    done = subprocess.run(
        [program, "s_client", "-tls1_2", "-connect", f"{address[0]}:{address[1]}", *own],
        input="R\n", capture_output=True, text=True, timeout=_TIMEOUT, check=False,
    )  # fmt: skip
    if "RENEGOTIATING" not in done.stdout + done.stderr:
        raise ValueError(f"no connection to renegotiate on: {done.stderr}")
    return "no renegotiation" not in done.stderr


def _client_hello(version: int, ciphers: Iterable[int], compressions: Sequence[int]) -> bytes:
    extensions = [
        (10, _vector(">H", _numbers(_GROUPS))),
        (11, _vector(">B", b"\0")),
        (13, _vector(">H", _numbers(_SIGNATURES))),
        (_SECURE_RENEGOTIATION, b"\0"),
    ]
    if version == TLS1_3:
        share = struct.pack(">H", _X25519) + _vector(">H", secrets.token_bytes(32))
        extensions += [
            (_SUPPORTED_VERSIONS, _vector(">B", _numbers([TLS1_3]))),
            (45, _vector(">B", b"\1")),
            (51, _vector(">H", share)),
        ]
    extended = b"".join(struct.pack(">H", kind) + _vector(">H", data) for kind, data in extensions)
    hello = (
        struct.pack(">H", min(version, TLS1_2))
        + secrets.token_bytes(32)
        + _vector(">B", secrets.token_bytes(32))
        + _vector(">H", _numbers(ciphers))
        + _vector(">B", bytes(compressions))
        + _vector(">H", extended)
    )
    message = bytes([_CLIENT_HELLO]) + len(hello).to_bytes(3) + hello
    return _RECORD.pack(_HANDSHAKE, min(version, TLS1_0), len(message)) + message


def _choice(head: bytes, read: Callable[[int], bytes]) -> Choice | None:
    if len(head) < _RECORD.size:
        return None
    kind, _version, size = _RECORD.unpack(head)
    if kind != _HANDSHAKE:  # an alert
        return None
    message = read(size)
    if len(message) < size or message[0] != _SERVER_HELLO:
        raise ValueError(f"the answer is no TLS: {head + message!r:.80}")
    version = int.from_bytes(message[4:6])
    place = 39 + message[38]
    cipher = int.from_bytes(message[place : place + 2])
    compression = message[place + 2]
    place += 5
    end = 4 + int.from_bytes(message[1:4])
    extensions = set()
    while place + 4 <= end:
        extension, length = struct.unpack_from(">HH", message, place)
        extensions.add(extension)
        if extension == _SUPPORTED_VERSIONS:
            version = int.from_bytes(message[place + 4 : place + 6])
        place += 4 + length
    return Choice(version, cipher, compression, frozenset(extensions))


def _numbers(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(2) for number in numbers)


def _vector(length: str, data: bytes) -> bytes:
    return struct.pack(length, len(data)) + data


def main(arguments: Sequence[str]) -> int:
    """Scan servers and print what they accept; return 1 if anything is weak."""
    parser = argparse.ArgumentParser(prog="python -m tests.tls_scan", description=_PURPOSE)
    parser.add_argument("servers", nargs="+", metavar="HOST:PORT", type=_address)
    weak = 0
    names = cipher_names()
    for address in parser.parse_args(arguments).servers:
        print(f"{address[0]}:{address[1]}")
        for version, name in VERSIONS.items():
            accepted = accepted_ciphers(address, version)
            listed = ", ".join(names.get(number, f"{number:#06x}") for number in accepted)
            print(f"  {name}: {listed or 'refused'}")
        for weakness in weaknesses(address):
            weak = 1
            print(f"  WEAK: {weakness}")
    return weak


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
