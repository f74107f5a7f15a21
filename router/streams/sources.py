"""The streams that can serve a client's request: its own, or one that serves others as well."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import bson

from router.change_stream.log_reader import ReadableStream
from router.change_stream.namespace import Namespace
from router.change_stream.request import AfterToken, StreamRequest
from router.filters.stream_filter import EVERYTHING, StreamFilter
from router.streams.shared_stream import SharedStream


def identity(request: StreamRequest) -> bytes:
    """Return the key that is equal for requests that may share remotes.

    It covers everything but the start, the batch options and the comment. A request that starts
    after an invalidate shares only with those that start after the same one, because their shards
    also swallow invalidates.
    """
    after = None
    if request.starts_after_invalidate and isinstance(request.start, AfterToken):
        after = request.start.token.data
    extras = {name: value for name, value in request.extras.items() if name != "comment"}
    return bson.encode(
        {
            "namespace": request.namespace,
            "options": request.change_stream_options,
            "stages": list(request.stages),
            "readPreference": request.read_preference,
            "extras": extras,
            "shard": request.passthrough_to_shard,
            "after": after,
        }
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A stream that can serve a client.

    ``request`` opens it. Of its events the client gets those that belong to ``namespace``, if that
    is given, and that ``filter`` lets through; None for its own stream, which has exactly the
    client's events. ``key`` is the request's identity.
    """

    request: StreamRequest
    filter: StreamFilter | None = None
    namespace: Namespace | None = None
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Compute the key."""
        object.__setattr__(self, "key", identity(self.request))

    def part_of(self, shared: SharedStream) -> Callable[[bytes], ReadableStream]:
        """Return a function that opens the client's part of ``shared`` beyond a sort key."""
        if self.filter is None and self.namespace is None:
            return lambda after: shared.runner.stream
        fan_out = shared.runner.filtered.fan_out
        stream_filter, namespace = self.filter or EVERYTHING, self.namespace
        return lambda after: fan_out.open(stream_filter, after, namespace)

    def starting(self, request: StreamRequest) -> StreamRequest:
        """Return the request that opens this stream with the start of ``request``."""
        return replace(self.request, start=request.start)
