"""Traces: sends this process's spans to an OpenTelemetry collector (docs/admin.md#traces).

Only a process with a collector imports OpenTelemetry's SDK; without one, spans record nothing.
"""

import asyncio
import threading
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from opentelemetry import trace

from router.config.tracing import Tracing

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
