"""The streams that can serve a request (docs/sharing.md)."""

from dataclasses import dataclass, field, replace

from router.filters.stream_filter import StreamFilter
from router.request.stream_request import StreamRequest
from router.stream.readers.fan_out import FanOut
from router.stream.readers.views import Namespace, View


@dataclass(frozen=True, slots=True)
class Source:
    """A stream that can serve a client.

    ``request`` opens it, and ``key`` is the request's identity. Without a ``namespace`` and a
    ``filter``, it is the client's own stream, which has exactly its events. The others are shared:
    the client gets the events that belong to the namespace, if there is one, and that the filter,
    if there is one, lets through.
    """

    request: StreamRequest
    filter: StreamFilter | None = None
    namespace: Namespace | None = None
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Compute the key."""
        object.__setattr__(self, "key", self.request.sharing_key)

    @property
    def is_wider(self) -> bool:
        """Whether its scope is wider than the client's: it has events of other namespaces."""
        return self.namespace is not None

    @property
    def part(self) -> bytes:
        """The part of the stream that counts: a filter, a database or a collection."""
        if self.namespace is None:
            return b"" if self.filter is None else self.filter.identity
        if self.request.of_cluster:
            return self.namespace.database
        return self.namespace.collection or b""

    @property
    def cost(self) -> int:
        """The conditions of its filter that are tried on every event, where no namespace helps."""
        if self.filter is None or self.is_wider:
            return 0
        return self.filter.condition.tried

    def open(self, fan_out: FanOut, after: bytes) -> View:
        """Return the client's view of the stream of ``fan_out``, beyond the sort key ``after``."""
        if self.filter is None and not self.is_wider:
            return fan_out.stream
        return fan_out.open(self.filter, after, self.namespace)


def wider_streams(request: StreamRequest, compiled: StreamFilter | None) -> tuple[Source, ...]:
    """Return the streams of wider scopes, widest first."""
    database = request.database.encode()
    collection = None if request.collection is None else request.collection.encode()
    namespace = Namespace(database, collection)
    options = {**request.change_stream_options, "allChangesForCluster": True}
    whole = replace(request, collection=None, stages=())
    cluster = replace(whole, database="admin", change_stream_options=options)
    requests = (cluster,) if collection is None else (cluster, whole)
    return tuple(Source(wider, compiled, namespace) for wider in requests)
