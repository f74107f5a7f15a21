"""The streams that can serve a request, and why others cannot (docs/sharing.md)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from router.filters.stream_filter import StreamFilter
from router.request.stream_request import StreamRequest
from router.stream.readers.fan_out import FanOut
from router.stream.readers.views import Namespace, View

AUTO, ALWAYS, NEVER = "auto", "always", "never"
_MODES: Final = (AUTO, ALWAYS, NEVER)

_IN_COMMENT: Final = re.compile(r"\b(shareFilters|shareScopes)=(auto|always|never)\b")

_SHAREABLE_OPTIONS: Final = {
    "fullDocument": ("default", "whenAvailable", None),
    "fullDocumentBeforeChange": ("off", "whenAvailable", None),
    "showRawUpdateDescription": (True, False),
    "showExpandedEvents": (False,),
    "showSystemEvents": (False,),
    "matchCollectionUUIDForUpdateLookup": (True, False),
}
"""The options and values with which a wider stream has exactly the narrower one's events.

A required image that is missing fails the wider stream, for another collection's event. Expanded
events of a database include those of its views, which a stream of that name does not have.
"""

_SHAREABLE_EXTRAS: Final = frozenset({"comment", "let", "allowDiskUse"})


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


def mode_of(request: StreamRequest, name: str, default: str) -> str:
    """Return the mode that the stream's comment names for the parameter ``name``, or the default.

    A comment is a string like "reporting; shareFilters=never" or a document with such a field. No
    comment overrides the default ``never``, which the operator has set.
    """
    if default == NEVER:
        return NEVER
    comment = request.extras.get("comment")
    if isinstance(comment, str):
        modes: dict[str, str] = dict(_IN_COMMENT.findall(comment))
        return modes.get(name, default)
    if isinstance(comment, Mapping):
        named = comment.get(name)
        return named if named in _MODES else default
    return default


def why_not_filters(request: StreamRequest, mode: str) -> str:
    """Return why the shards must evaluate the filter, without regard to its stages."""
    if not request.stages:
        return "it has no filter"
    if mode == NEVER:
        return "shareFilters is never"
    if request.extras.get("collation") is not None:
        return "it has a collation"
    # Whether a shard's invalidate is skipped depends on what its filter lets through.
    return _why_alone(request)


def _why_alone(request: StreamRequest) -> str:
    """Return why a stream is read for its own clients only, or an empty string."""
    if request.passthrough_to_shard is not None:
        return "it reads one shard"
    return "it starts after an invalidate" if request.starts_after_invalidate else ""


def why_not_scopes(request: StreamRequest, mode: str) -> str:
    """Return why a stream has no wider one, without regard to its filter, or an empty string."""
    if request.of_cluster:
        return "it reads the whole cluster"
    if mode == NEVER:
        return "shareScopes is never"
    if alone := _why_alone(request):
        return alone
    for name, value in request.change_stream_options.items():
        if value not in _SHAREABLE_OPTIONS.get(name, ()):
            return f"it has the option {name}"
    for name in request.extras:
        if name not in _SHAREABLE_EXTRAS:
            return f"it has {name}"
    return ""
