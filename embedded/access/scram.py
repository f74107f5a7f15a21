"""The server's side of a SCRAM login (RFC 5802), with MongoDB's passwords and credentials.

Source: MongoDB's authentication specification for drivers (the digest of SCRAM-SHA-1); the numbers
of iterations and the sizes of salts are the server's.
"""

import base64
import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from scramp import ScramException, ScramMechanism

from embedded.storage.bson_values import Document

SHA_1, SHA_256 = "SCRAM-SHA-1", "SCRAM-SHA-256"


class _Parameters(NamedTuple):
    iterations: int
    salt_bytes: int


MECHANISMS = {SHA_1: _Parameters(10_000, 16), SHA_256: _Parameters(15_000, 28)}
"""The mechanisms of passwords."""


class RefusedLoginError(Exception):
    """The client does not prove that it knows the password, or its message is malformed."""


def make_credentials(user: str, password: str, mechanisms: Iterable[str]) -> Document:
    """Return what a server stores instead of a password, by mechanism, as in system.users."""
    return {name: _credentials(name, user, password) for name in mechanisms}


def _credentials(mechanism: str, user: str, password: str) -> Document:
    parameters = MECHANISMS[mechanism]
    if mechanism == SHA_1:
        password = hashlib.md5(f"{user}:mongo:{password}".encode()).hexdigest()  # noqa: S324
    salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
        password,
        iteration_count=parameters.iterations,
        salt=secrets.token_bytes(parameters.salt_bytes),
    )
    return {
        "iterationCount": iterations,
        "salt": base64.b64encode(salt).decode(),
        "storedKey": base64.b64encode(stored_key).decode(),
        "serverKey": base64.b64encode(server_key).decode(),
    }


class Exchange:
    """One SCRAM login on the server's side.

    Args:
        mechanism: one of MECHANISMS.
        find: returns a user's credentials by its name; None if it has none of the mechanism.
    """

    def __init__(self, mechanism: str, find: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._find = find
        self._server = ScramMechanism(mechanism).make_server(self._stored)
        self.user = ""
        """The name that the client gives in its first message."""

    def first(self, payload: bytes) -> bytes:
        """Return the answer to the client's first message; raises RefusedLoginError."""
        with _Refusing():
            self._server.set_client_first(payload.decode())
            return str(self._server.get_server_first()).encode()

    def final(self, payload: bytes) -> bytes:
        """Check the client's proof and return the server's; raises RefusedLoginError."""
        with _Refusing():
            self._server.set_client_final(payload.decode())
            return str(self._server.get_server_final()).encode()

    def _stored(self, user: str) -> tuple[bytes, bytes, bytes, int] | None:
        self.user = user
        found = self._find(user)
        if found is None:
            return None
        salt, stored, server = (
            base64.b64decode(found[name]) for name in ("salt", "storedKey", "serverKey")
        )
        return salt, stored, server, int(found["iterationCount"])


class _Refusing:
    """Turns the SCRAM library's errors into RefusedLoginError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ScramException | ValueError | KeyError | IndexError):
            raise RefusedLoginError(str(error)) from None
