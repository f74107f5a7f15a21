"""The lines of a feed: bounded ones from the client, documents to it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from shard_client.errors import CommandError


async def read_line(reader: asyncio.StreamReader, most: int) -> bytes:
    """Return the next line without its end; at the end of the stream the rest, possibly empty.

    Args:
        reader: the client's connection; its own limit can be smaller than ``most``.
        most: maximum number of bytes.

    Raises:
        ValueError: the line is longer.
    """
    parts: list[bytes] = []
    size = 0
    ended = False
    while not ended:
        try:
            part = await reader.readuntil(b"\n")
            ended = True
        except asyncio.IncompleteReadError as error:
            part, ended = error.partial, True
        except asyncio.LimitOverrunError as error:
            part = await reader.readexactly(error.consumed)
        parts.append(part)
        size += len(part)
        if size > most:
            raise ValueError(f"a line is longer than {most} bytes")
    return b"".join(parts).strip()


async def write_line(writer: asyncio.StreamWriter, document: Mapping[str, Any]) -> None:
    """Write a document of plain values as one line of JSON and wait until it can be sent."""
    writer.write(json.dumps(document, default=str).encode() + b"\n")
    await writer.drain()


async def write_error(writer: asyncio.StreamWriter, error: CommandError) -> None:
    """Write an error, the last line of a feed."""
    reply = error.to_reply()
    del reply["ok"]
    await write_line(writer, {"error": reply})
