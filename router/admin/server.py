"""The HTTP server of the admin port."""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from typing import Any, Final, Self

import structlog
from aiohttp import BasicAuth, web
from aiohttp.http import HttpProcessingError
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from router.accepting_port import AcceptingPort
from router.admin.formatting import in_bytes, in_rate, in_reason, in_scope, in_wait, in_words
from router.admin.metrics import exposition
from router.admin.router_status import Collect
from router.admin.status_view import SAMPLE_INTERVAL, History, sample_of, status_view
from router.config.settings import Net
from router.limits.connection_limit import ConnectionLimit
from router.tls.certificates import Certificates
from router.tls.handshake import Handshakes

log = structlog.get_logger(component="NETWORK")


def sparkline(values: Sequence[float | None], least: float = 1.0) -> str:
    """Return the points of a polyline, 100 wide and 20 high, oldest value on the left.

    None leaves a gap at the bottom. Lines below ``least`` do not take the whole height.
    """
    highest = max([least, *(value for value in values if value is not None)])
    step = 100 / max(1, len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{20 - 19 * (value or 0.0) / highest:.1f}"
        for number, value in enumerate(values)
    )


@cache
def _template() -> Template:
    loader = PackageLoader("router.admin")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["words"] = in_words
    environment.filters["scope"] = in_scope
    environment.filters["rate"] = in_rate
    environment.filters["reason"] = in_reason
    environment.filters["wait"] = in_wait
    environment.filters["spark"] = sparkline
    environment.filters["bytes"] = in_bytes
    return environment.get_template("status.html")


_OPEN: Final = frozenset({"/healthz", "/readyz"})
"""Paths that need no token, because few service managers can send one with a probe."""

_MOST_AT_ONCE: Final = 4
"""Requests for one path that are served at a time, so that no page delays another, or a probe."""
_MOST_CONNECTIONS: Final = 100
"""Connections at a time; the oldest makes room for the next, and each serves one request."""
_LIFETIME: Final = 10.0
"""Seconds after which a connection whose request has not been answered may be ended."""
_SHUTDOWN_TIMEOUT = 1.0
_LARGEST_REQUEST: Final = 16 * 1024

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminServer(AcceptingPort):
    """Serves metrics, health and status; use it as an async context manager.

    Args:
        collect: collects the router's status.
        token: the token that clients must send, as a bearer token or as the password of HTTP
            basic authentication; None lets everyone in.
        handshakes: as for any port.
    """

    def __init__(
        self, collect: Collect, token: str | None = None, *, handshakes: Handshakes | None = None
    ) -> None:
        super().__init__(handshakes, self._http, ConnectionLimit(_MOST_CONNECTIONS))
        self._collect = collect
        self._token = token
        self._history = History()
        app = web.Application(middlewares=[self._guard], client_max_size=_LARGEST_REQUEST)
        pages = {
            "/": self._page,
            "/status.json": self._document,
            "/metrics": self._metrics,
            "/healthz": self._health,
            "/readyz": self._ready,
        }
        app.add_routes([web.get(path, page) for path, page in pages.items()])
        self._turns = {path: asyncio.Semaphore(_MOST_AT_ONCE) for path in pages}
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_HttpLog(),
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_TIMEOUT,
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._runner.setup()
        self.run(self._end_slow)
        self.run(self._sample)
        return self

    async def _end(self) -> None:
        await self._runner.cleanup()

    def _http(self, _arrived: Callable[[], None]) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        for oldest in server.connections[: 1 - _MOST_CONNECTIONS]:
            oldest.force_close()
        return server()

    async def _end_slow(self) -> None:
        """End connections that have been open for ``_LIFETIME`` or more, at most twice that."""
        server = self._runner.server
        assert server is not None
        before = set(server.connections)
        while True:
            await asyncio.sleep(_LIFETIME)
            for connection in before.intersection(server.connections):
                connection.force_close()
            before = set(server.connections)

    async def _sample(self) -> None:
        """Keep the last minutes for the page."""
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL)
            try:
                self._history.add(sample_of(await self._collect(False)))
            except Exception:  # the page goes on without this sample
                log.exception("Unexpected error", task="history")

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse requests without the token, and bound those that run at a time."""
        response: web.StreamResponse
        try:
            self._check_token(request)
            async with self._turns.get(request.path, nullcontext()):
                response = await handler(request)
        except web.HTTPException as refusal:
            response = web.Response(
                status=refusal.status, text=refusal.text, headers=refusal.headers
            )
        except Exception:  # a page's bug must not reach the client as a traceback
            log.exception("Unexpected error", path=request.path)
            response = web.Response(status=500, text="unexpected error; see the log\n")
        response.headers.update(_HEADERS)
        response.force_close()
        return response

    def _check_token(self, request: web.Request) -> None:
        if self._token is None or request.path in _OPEN:
            return
        sent = _token_of(request.headers.get("Authorization", ""))
        if sent is None or not hmac.compare_digest(sent, self._token.encode()):
            raise web.HTTPUnauthorized(
                headers={"WWW-Authenticate": 'Basic realm="mergerouter", charset="UTF-8"'},
                text="This page needs the admin token: send it as a bearer token, or as the "
                "password of HTTP basic authentication.\n",
            )

    async def _page(self, _request: web.Request) -> web.Response:
        nonce = secrets.token_urlsafe(16)
        # Allowed are the page's own style and script, requests to this port, and nothing else.
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        page = _template().render(view=await self._view(), nonce=nonce)
        headers = {"Content-Security-Policy": policy}
        return web.Response(text=page, content_type="text/html", headers=headers)

    async def _document(self, _request: web.Request) -> web.Response:
        return web.json_response(await self._view())

    async def _view(self) -> dict[str, Any]:
        status = await self._collect(True)
        self._history.add(sample_of(status))
        view = status_view(status, self._history)
        if view is None:
            raise web.HTTPServiceUnavailable(text="no worker answers; see the log\n")
        return view

    async def _metrics(self, request: web.Request) -> web.Response:
        status = await self._collect(False)
        body, content_type = exposition(status, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _health(self, _request: web.Request) -> web.Response:
        """Answer that the process runs: an event loop that hangs does not answer."""
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        """Answer 200 if clients can be served, else 503, with a line for each problem.

        With ``?shards=optional``, shards that do not answer are reported but do not make it 503.
        """
        status = await self._collect(False)
        problems = status.router_problems()
        shards = status.shard_problems()
        ready = not problems and (not shards or request.query.get("shards") == "optional")
        lines = [*problems, *shards, *status.warnings()] or ["ready"]
        return web.Response(status=200 if ready else 503, text="\n".join(lines) + "\n")


@asynccontextmanager
async def admin_port(
    net: Net, certificates: Certificates | None, collect: Collect
) -> AsyncIterator[dict[str, int]]:
    """Serve the admin port during a block, if the settings name one.

    Yields the port by its name in the log. ``certificates`` are the router's, None without TLS.
    Raises ValueError: the file with the token is invalid; OSError: it cannot be read, or the port
    cannot be opened.
    """
    admin, mode, handshakes = net.admin, net.admin_tls_mode, None
    if admin.port is None:
        yield {}
        return
    if certificates is not None and mode != "disabled":
        contexts = certificates.contexts
        handshakes = Handshakes(lambda: contexts.unasked, required=mode == "requireTLS")
    async with AdminServer(collect, admin.read_token(), handshakes=handshakes) as server:
        yield {"adminPort": await server.listen(admin.hosts, admin.port)}


class _HttpLog:
    """aiohttp's logger for the admin port. What is not HTTP makes one line, without its text."""

    def debug(self, *_message: object, **_details: object) -> None:
        """Log nothing."""

    def exception(self, message: str, *_details: object, exc_info: BaseException) -> None:
        """Log that a request was refused with 400, or that the server has failed.

        A client that has gone before its answer is not logged.
        """
        if isinstance(exc_info, ConnectionError):
            return
        if isinstance(exc_info, HttpProcessingError | web.RequestPayloadError):
            log.warning(
                "Refused a request on the admin port that is not valid HTTP",
                reason=type(exc_info).__name__,
            )
        else:
            log.error("Unexpected error", exc_info=exc_info)


def _token_of(authorization: str) -> bytes | None:
    """Return the token in an Authorization header, None if there is none."""
    scheme, _space, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode(errors="surrogateescape")
    try:
        return str(BasicAuth.decode(authorization, encoding="utf-8").password).encode()
    except ValueError:  # another scheme, not base64, or without a password
        return None
