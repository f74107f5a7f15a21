"""Pictures of the status page for the documentation: ``python -m tests.admin_pictures``.

They show a cluster of three shards with two streams, of which one shard has just stopped answering.
"""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from tests.harness.browser import browser
from tests.harness.clusters import start_cluster
from tests.harness.routers import RouterProcess, start_router

_FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
_HELD = "[...document.querySelectorAll('.why')].some(e => /reconnecting/.test(e.textContent))"


def _watch(uri: str, collection: str, stop: threading.Event) -> None:
    with (
        pymongo.MongoClient[dict[str, Any]](uri) as client,
        suppress(PyMongoError),
        client.shop[collection].watch(max_await_time_ms=500) as stream,
    ):
        while not stop.is_set():
            stream.try_next()


def _write(uri: str, stop: threading.Event) -> None:
    with pymongo.MongoClient[dict[str, Any]](uri) as client, suppress(PyMongoError):
        number = 0
        while not stop.wait(0.01):
            for collection in ("orders", "payments"):
                client.shop[collection].insert_one({"n": number})
            number += 1


async def _take(router: RouterProcess) -> None:
    async with browser() as page:
        await page.resize(1200, 1150)
        await page.open(f"http://127.0.0.1:{router.admin_port}/")
        await page.until(_HELD)
        await asyncio.sleep(3)  # let the failure last for some seconds
        for name, scheme, size in (
            ("status-light", "light", (1200, 1150)),
            ("status-dark", "dark", (1200, 1150)),
            ("status-phone", "light", (390, 1100)),
        ):
            await page.prefer(scheme)
            await page.resize(*size)
            (_FOLDER / f"{name}.webp").write_bytes(await page.screenshot())


def main() -> None:
    """Take the pictures."""
    _FOLDER.mkdir(exist_ok=True)
    stop = threading.Event()
    with (
        start_cluster(shards=3) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri, admin_port=0) as router,
    ):
        threads = [
            threading.Thread(target=_watch, args=(router.uri, name, stop))
            for name in ("orders", "orders", "payments")
        ]
        threads.append(threading.Thread(target=_write, args=(router.uri, stop)))
        for thread in threads:
            thread.start()
        with pymongo.MongoClient[dict[str, Any]](router.uri) as client:
            while client.shop.payments.estimated_document_count() < 200:
                stop.wait(0.1)
            home = client.config.databases.find_one({"_id": "shop"})
        assert home is not None
        quiet = next(shard for shard in ("shard1", "shard2") if shard != home["primary"])
        cluster.stop_member(quiet)
        try:
            asyncio.run(_take(router))
        finally:
            stop.set()
            cluster.start_member(quiet)
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
