"""The server's side of a SCRAM-SHA-256 login (RFC 7677).

The number of iterations and the size of the salt are MongoDB's.
"""

import secrets
from collections.abc import Callable
from typing import NamedTuple

from scramp import ScramException, ScramMechanism

from shard_client.wire.authentication import MECHANISM

_ITERATIONS, _SALT_BYTES = 15_000, 28


class RefusedLoginError(Exception):
    """The client does not prove that it knows the password, or its message is malformed."""


class StoredPassword(NamedTuple):
    """What a server stores instead of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of(cls, password: str) -> "StoredPassword":
        """Return what is stored for a new password."""
        salt = secrets.token_bytes(_SALT_BYTES)
        auth_info = ScramMechanism(MECHANISM).make_auth_info(
            password, iteration_count=_ITERATIONS, salt=salt
        )
        return cls(*auth_info)


class Exchange:
    """One login: two messages of the client, each with an answer, and an empty one if asked for.

    Args:
        find: returns what is stored for a user's password; None if there is no such user.
        skips_empty: whether the client wants no empty message at the end.
    """

    def __init__(self, find: Callable[[str], StoredPassword | None], *, skips_empty: bool) -> None:
        self._find = find
        self._skips_empty = skips_empty
        self._server = ScramMechanism(MECHANISM).make_server(self._stored)
        self._messages = 0
        self.user = ""
        """The name that the client gives in its first message."""

    def step(self, payload: bytes) -> tuple[bytes, bool]:
        """Return the answer to the next message, and whether the client is then logged in.

        Raises:
            RefusedLoginError: see there.
        """
        self._messages += 1
        try:
            if self._messages == 1:
                self._server.set_client_first(payload.decode())
                return str(self._server.get_server_first()).encode(), False
            if self._messages == 2:
                self._server.set_client_final(payload.decode())
                return str(self._server.get_server_final()).encode(), self._skips_empty
        except (ScramException, ValueError, KeyError, IndexError) as error:
            raise RefusedLoginError(str(error)) from None
        return b"", True

    def _stored(self, user: str) -> StoredPassword | None:
        self.user = user
        return self._find(user)
