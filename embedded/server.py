"""The listening side of an embedded server: frames in, ``run_command``, frames out."""

from typing import Protocol

from embedded.clients import Client
from embedded.storage.bson_values import Document


class CommandHandler(Protocol):
    """What a ``Server`` serves: an embedded mongod or mongos."""

    async def run_command(self, database: str, command: Document, client: Client) -> Document:
        """Answer one command with a whole reply, ``ok: 0`` for errors.

        Is cancelled when the client's connection ends. ``hello`` with ``topologyVersion`` and
        ``maxAwaitTimeMS`` waits here; the server repeats it when the client allows exhaust.
        """

    def connection_closed(self, client: Client) -> None:
        """The client is gone."""


class Server:
    """Listen on one port of 127.0.0.1 and serve ``handler`` to every connection."""

    def __init__(self, handler: CommandHandler) -> None: ...

    async def start(self, port: int = 0) -> None:
        """Listen; port 0 picks a free one."""

    async def stop(self) -> None:
        """Stop listening, end all connections and their commands."""

    @property
    def address(self) -> tuple[str, int]:
        """host, port."""
        raise NotImplementedError
