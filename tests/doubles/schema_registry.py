"""Confluent's schema registry, as far as clients register schemas and read them by their ids."""

import itertools
import json
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

_TYPE = "application/vnd.schemaregistry.v1+json"
_NUMBERS = itertools.count(1)


class Request(NamedTuple):
    """A request to register a schema: the subject and the header Authorization."""

    subject: str
    authorization: str | None


class SchemaRegistry:
    """A registry: `schemas` by their ids from 1 on, equal texts once, and all `requests`.

    Each of `failures` answers a request to register instead: a status with a body; None closes the
    connection. While `answering` is clear, no request is answered. `url` is another one for each
    registry of a process, even on the same port.
    """

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.requests: list[Request] = []
        self.failures: list[tuple[int, bytes] | None] = []
        self.answering = threading.Event()
        self.path = f"/registry{next(_NUMBERS)}"
        self.url = ""

    def register(self, text: str) -> int:
        """Return a schema's id."""
        if text not in self.schemas:
            self.schemas.append(text)
        return self.schemas.index(text) + 1

    def schema_of(self, message: bytes) -> Any:
        """Return the schema of a message in Confluent's wire format."""
        magic, number = struct.unpack(">bI", message[:5])
        assert magic == 0
        return json.loads(self.schemas[number - 1])


@contextmanager
def serving(
    registry: SchemaRegistry, port: int = 0, certificate: Path | None = None
) -> Iterator[SchemaRegistry]:
    """Serve a registry on a port of the loopback, by default on a free one.

    With a certificate, whose file has its key too, it is served by HTTPS.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = [unquote(each) for each in self._path().split("/")]
            assert path[1] == "subjects", path
            assert self.headers["Content-Type"] == _TYPE
            schema = json.loads(body).get("schema")
            if len(path) == 3:  # which version a schema is
                found = {"subject": path[2], "version": 1, "schema": schema}
                self._answer(200, json.dumps({**found, "id": registry.register(schema)}))
                return
            assert path[3] == "versions", path
            registry.requests.append(Request(path[2], self.headers["Authorization"]))
            registry.answering.wait()
            if registry.failures:
                failure = registry.failures.pop(0)
                if failure is not None:
                    self._answer(*failure)
                return
            self._answer(200, json.dumps({"id": registry.register(schema)}))

        def do_GET(self) -> None:
            number = int(self._path().removeprefix("/schemas/ids/"))
            self._answer(200, json.dumps({"schema": registry.schemas[number - 1]}))

        def _path(self) -> str:
            assert self.path.startswith(registry.path), self.path
            return urlsplit(self.path).path.removeprefix(registry.path)

        def _answer(self, status: int, body: str | bytes) -> None:
            content = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            self.send_header("Content-Type", _TYPE)
            if 300 <= status < 400:
                self.send_header("Location", f"//elsewhere{self.path}")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True

    registry.answering.set()
    with Server(("127.0.0.1", port), Handler) as server:
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        registry.url = f"{scheme}://127.0.0.1:{server.server_address[1]}{registry.path}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield registry
        finally:
            registry.answering.set()
            server.shutdown()
