"""A headless Chromium, driven over its debugging protocol."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_TIMEOUT = 60.0
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Page:
    """One page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self._events: list[dict[str, Any]] = []

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the protocol and return its result; keep the events that arrive."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._events.append(message)

    async def open(self, url: str) -> None:
        """Load a page to its end."""
        await self.send("Page.navigate", url=url)
        await self._until_event("Page.loadEventFired")

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression, of its promise if it is one."""
        result = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(_TIMEOUT):
            while not await self.evaluate(script):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def press(self, key: str, code: int) -> None:
        """Press and release a key, given with its Windows key code."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    async def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    async def prefer(self, scheme: str) -> None:
        """Prefer "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    def requested(self) -> list[str]:
        """Return the addresses requested so far."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return errors of scripts and of the page's security policy so far."""
        thrown = [
            str(event["params"])
            for event in self._events
            if event["method"] == "Runtime.exceptionThrown"
        ]
        logged = [
            event["params"]["entry"]["text"]
            for event in self._events
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
        ]
        return thrown + logged

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=_TIMEOUT)
        return message

    async def _until_event(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._events.append(await self._receive())
        self._events = [event for event in self._events if event["method"] != method]

    async def enable(self) -> Self:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")
        return self


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Start a browser with one empty page; it ends with the block."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *_ARGUMENTS, f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            port = await _debugging_port(process)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                async with session.get("/json/list") as reply:
                    pages = [each for each in await reply.json() if each["type"] == "page"]
                address = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield await Page(socket).enable()
        finally:
            process.kill()
            await process.wait()


async def _debugging_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(_TIMEOUT):
        while line := await process.stderr.readline():
            if line.startswith(b"DevTools listening on ws://"):
                return int(line.split(b"/")[2].rpartition(b":")[2])
    raise AssertionError("Chromium ended before it listened")
