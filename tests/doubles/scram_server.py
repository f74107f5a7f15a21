"""The server of a SCRAM login."""

from collections.abc import Mapping
from typing import Any

from bson import Binary
from scramp import ScramException, ScramMechanism
from scramp.core import ScramServer as Exchange

from shard_client.errors import CommandError

_MECHANISM = ScramMechanism("SCRAM-SHA-256")


class ScramServer:
    """The server's part of a login, run by the SCRAM library."""

    def __init__(self, password: str = "secret", *, skips_empty_exchange: bool = True) -> None:
        self.password = password
        self.skips = skips_empty_exchange
        self.commands: list[dict[str, Any]] = []
        self.changed: dict[str, Any] = {}
        self.iterations = "4096"
        self._scram: Exchange | None = None

    async def command(
        self, database: str, command: Mapping[str, Any], *, timeout: float | None
    ) -> dict[str, Any]:
        self.commands.append({**command, "$db": database})
        payload = bytes(command["payload"])
        done = False
        if "saslStart" in command:
            self._scram = _MECHANISM.make_server(
                lambda user: _MECHANISM.make_auth_info(self.password, iteration_count=4096)
            )
            self._scram.set_client_first(payload.decode())
            first = self._scram.get_server_first()
            answer = first.replace("i=4096", f"i={self.iterations}").encode()
        elif payload:
            assert self._scram is not None
            try:
                self._scram.set_client_final(payload.decode())
            except ScramException as error:
                raise CommandError(18, "Authentication failed.") from error
            answer = self._scram.get_server_final().encode()
            done = self.skips
        else:
            answer, done = b"", True
        reply = {"conversationId": 1, "payload": Binary(answer), "done": done, "ok": 1.0}
        return {**reply, **self.changed}
