"""Watch a collection with Motor.

Usage: watch_motor.py [URI]
"""

import asyncio
import sys
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient


async def main(uri: str = "mongodb://127.0.0.1:27020") -> None:
    """Print each change of shop.orders."""
    client: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(uri)
    async with client.shop.orders.watch() as changes:
        # The first try_next opens the stream, which delivers every write from then on.
        await changes.try_next()
        print("watching", flush=True)
        async for change in changes:
            print(change["operationType"], change.get("documentKey", {}).get("_id"), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
