"""Division of a request into the part that the shards run and the part after the lookup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from router.request.event_conditions import early_part
from router.request.start_options import AfterToken
from router.request.stream_request import StreamRequest
from shard_client.bson.resume_token import ResumeToken

UPDATE_LOOKUP: Final = "updateLookup"

_LOOKED_UP: Final = "fullDocument"
"""The field that a lookup changes, in events of updates and in no others."""

_NEEDED: Final = frozenset(
    {"_id", "operationType", "ns", "documentKey", "clusterTime", "collectionUUID", _LOOKED_UP}
)
"""The fields that a lookup reads or changes."""


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """A request with ``updateLookup``, divided between the shards and the router.

    ``remote`` is the shards' part: no lookup, and of the user's stages only those that may run
    before it, with conditions that let all updates pass if they depend on it. ``stages`` are those
    that follow the lookup. ``user_stages`` are all stages as the client sent them. Both exclude
    ``$changeStreamSplitLargeEvent``; ``splits`` is True if the request has that stage. ``resume``
    is the client's token if it names a fragment.
    """

    remote: StreamRequest
    stages: tuple[Mapping[str, Any], ...]
    user_stages: tuple[Mapping[str, Any], ...]
    splits: bool = False
    resume: ResumeToken | None = None

    @classmethod
    def of(cls, request: StreamRequest) -> Self | None:
        """Return the plan for ``request``, or None if the router looks up no documents for it.

        A stream that is passed through to one shard looks up its documents on that shard, as it
        does when mongos passes it through.
        """
        if request.change_stream_options.get("fullDocument") != UPDATE_LOOKUP:
            return None
        if request.passthrough_to_shard is not None:
            return None
        user_stages: Sequence[Mapping[str, Any]] = request.stages
        split: Sequence[Mapping[str, Any]] = ()
        if request.splits_large_events:
            # Shards split as well, so that they create tokens of the version that fragments need.
            user_stages, split = request.stages[:-1], request.stages[-1:]
        pushed, rest = divide(user_stages)
        options = {k: v for k, v in request.change_stream_options.items() if k != "fullDocument"}
        start, resume = request.start, None
        if isinstance(start, AfterToken) and start.token.fragment_num is not None:
            # The fragment's event must be read again, to be split again.
            resume = start.token
            start = resume.cluster_time
        remote = replace(
            request, change_stream_options=options, stages=(*pushed, *split), start=start
        )
        return cls(remote, rest, tuple(user_stages), bool(split), resume)


def divide(
    stages: Sequence[Mapping[str, Any]],
) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """Divide a pipeline into stages that can run before the lookup and stages that must follow it.

    Both parts together select and transform events as the whole pipeline does. The first stages run
    before the lookup alone if they are conditions that it does not change, or only remove fields
    that it does not need. All stages from the next one on follow it. Some of their conditions are
    evaluated before it as well, since events that they leave out may be too large, or lack a
    required image. A very large stage, and what follows it, is not inspected.
    """
    early, whole = early_part(stages, changed={_LOOKED_UP}, needed=_NEEDED, weaker=_unless_updated)
    return tuple(early), tuple(stages[whole:])


def _unless_updated(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a condition for all events except updates, whose document the lookup changes.

    A server may evaluate it for updates too, so it must never fail.
    """
    return {"$or": [{"operationType": "update"}, condition]}
