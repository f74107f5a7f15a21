"""``tracing``: sends this process's spans to an OpenTelemetry collector (docs/admin.md#traces).

Only a process with a collector imports OpenTelemetry's SDK; without one, spans record nothing.
"""

import asyncio
import shlex
import sys
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from router.config.problems import Section
from shard_client.wire.authentication import read_secret_file

_PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")


class Tracing(Section):
    """``tracing``: where spans go, and how many are recorded (docs/admin.md#traces)."""

    endpoint: str | None = None
    """The URL to which spans are sent, by OTLP over HTTP: http://collector:4318/v1/traces. Needs
    the extra otel; without it there are no traces."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """The share of traces that are recorded."""
    headers_file: Path | None = None
    """A file with headers for the collector, such as a token: lines of name: value, readable by its
    owner only."""

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is None:
            return value
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("must be a URL such as http://collector:4318/v1/traces")
        if url.username is not None:
            raise ValueError("must hold no password: put the header into tracing.headersFile")
        for package in _PACKAGES:
            try:
                version(package)
            except PackageNotFoundError:
                raise ValueError(
                    f"requires {package}, which is not installed. "
                    f"Run: {shlex.join([sys.executable, '-m', 'pip', 'install', *_PACKAGES])}"
                ) from None
        return value

    def read_headers(self) -> dict[str, str]:
        """Return the headers in ``headersFile`` by name; none if no file is set.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file can be read by others, or a line is no header.
        """
        if self.headers_file is None:
            return {}
        headers = {}
        for line in read_secret_file(self.headers_file).splitlines():
            name, colon, value = line.partition(":")
            if not (colon and name.strip() and value.strip()):
                raise ValueError(f"{self.headers_file} must hold lines of name: value")
            headers[name.strip()] = value.strip()
        return headers


_FLUSH_TIME: Final = 2.0
"""Seconds in which the last spans are sent at the end."""


class SpanExport:
    """Sends spans, in batches and on a thread of its own. Create one in a process, in its loop.

    A collector that does not answer costs spans, not events: at most 2,048 spans wait for it.

    Args:
        settings: the operator's settings, with an endpoint.
        number: the process's number, from 1; 0 if it is the router's only process.

    Raises:
        ValueError: the file with the headers is invalid.
        OSError: it cannot be read.
    """

    def __init__(self, settings: Tracing, number: int) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

        ours = {"service.name": "mergerouter", "service.version": version("mergerouter")}
        if number:
            ours["service.instance.id"] = f"worker{number}"
        self._exporter = OTLPSpanExporter(settings.endpoint, headers=settings.read_headers())
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(settings.sample_ratio),
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before our own.
            resource=Resource(ours).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        trace.set_tracer_provider(self._provider)

    async def close(self) -> None:
        """Send the spans that wait, within two seconds; leave out those that remain."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set)

        # A thread that the end of the process does not wait for.
        threading.Thread(target=flush, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIME):
                await done.wait()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
