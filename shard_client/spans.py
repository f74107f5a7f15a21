"""Spans of OpenTelemetry's API (docs/admin.md#traces).

They record nothing unless a process has its SDK.

Spans have the names of databases, collections, replica sets, members and errors as attributes, and
counts, but no filters, documents, resume tokens, users, client addresses or messages of errors.
"""

import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.trace import Span, SpanKind, StatusCode

from shard_client.errors import CommandError

__all__ = ["Attributes", "Span", "apart", "begin", "current", "end", "recorded"]

Attributes = Mapping[str, str | bool | int | float]

_TRACER: Final = trace.get_tracer("mergerouter")


def current() -> Span:
    """Return the span of the block that runs."""
    return trace.get_current_span()


def apart() -> contextvars.Context:
    """Return a copy of the context without a current span, for a task that outlives this one's."""
    context = contextvars.copy_context()
    context.run(attach, Context())
    return context


def begin(name: str, attributes: Attributes, parent: Span | None = None) -> Span:
    """Return a span that has begun; end it with ``end``.

    It is part of the span ``parent``, by default of the current one.
    """
    context = None if parent is None else trace.set_span_in_context(parent)
    return _TRACER.start_span(name, context, kind=SpanKind.CLIENT, attributes=attributes)


def end(span: Span, error: BaseException | None = None) -> None:
    """End a span; if ``error`` is given, mark it as failed with the error's name, no message."""
    if error is not None and span.is_recording():
        name = error.code_name if isinstance(error, CommandError) else type(error).__name__
        span.set_attribute("error.type", name)
        span.set_status(StatusCode.ERROR)
    span.end()


@contextmanager
def recorded(name: str, attributes: Attributes, parent: Span | None = None) -> Iterator[Span]:
    """Record the block as a span, which is the current one meanwhile; arguments as ``begin``."""
    span = begin(name, attributes, parent)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield span
    except BaseException as error:
        end(span, error)
        raise
    end(span)
