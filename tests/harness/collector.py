"""A collector of OpenTelemetry's spans, as far as a test needs one: OTLP over HTTP."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Sent(NamedTuple):
    """A span that arrived; ``parent`` is empty for the first of a trace."""

    name: str
    span_id: bytes
    parent: bytes
    attributes: dict[str, Any]
    failed: bool
    resource: dict[str, Any]


class Collector:
    """Listens on a free port of 127.0.0.1; use it as a context manager.

    ``bodies`` are the requests' bodies, ``tokens`` their ``x-token`` headers.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.tokens: set[str | None] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.append(body)
                collector.tokens.add(self.headers.get("x-token"))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """The URL to send spans to."""
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    @property
    def spans(self) -> list[Sent]:
        """The spans that have arrived."""
        arrived = []
        for body in list(self.bodies):
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _plain(group.resource.attributes)
                for scope in group.scope_spans:
                    arrived += [
                        Sent(
                            span.name,
                            span.span_id,
                            span.parent_span_id,
                            _plain(span.attributes),
                            span.status.code == span.status.STATUS_CODE_ERROR,
                            resource,
                        )
                        for span in scope.spans
                    ]
        return arrived

    def named(self, name: str) -> list[Sent]:
        """Return the spans with this name."""
        return [span for span in self.spans if span.name == name]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
