"""Division of a request into the part that the shards run and the part after the lookup."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from router.request.accepted import stage_name
from router.request.event_conditions import (
    conjunction,
    conjuncts,
    fields_removed,
    leaves_alone,
    reads_of,
    small_stages,
)
from router.request.stream_request import AfterToken, AtTime, StreamRequest
from shard_client.bson.resume_token import ResumeToken

UPDATE_LOOKUP: Final = "updateLookup"

_LOOKED_UP: Final = "fullDocument"
"""The field that a lookup changes, in events of updates and in no others."""

_NEEDED: Final = frozenset(
    {"_id", "operationType", "ns", "documentKey", "clusterTime", "collectionUUID", _LOOKED_UP}
)
"""The fields that a lookup reads or changes."""

_IS_UPDATE: Final = {"operationType": "update"}


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """A request with ``updateLookup``, divided between the shards and the router.

    ``remote`` is the shards' part: no lookup, and of the user's stages only leading ``$match``
    conditions, which let all updates pass if they depend on the lookup. ``stages`` are those that
    follow the lookup. ``user_stages`` are all stages as the client sent them. Both exclude
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
        own: Sequence[Mapping[str, Any]] = request.stages
        split: Sequence[Mapping[str, Any]] = ()
        if request.splits_large_events:
            # Shards split as well, so that they create tokens of the version that fragments need.
            own, split = request.stages[:-1], request.stages[-1:]
        pushed, rest = divide(own)
        options = {k: v for k, v in request.change_stream_options.items() if k != "fullDocument"}
        start, resume = request.start, None
        if isinstance(start, AfterToken) and start.token.fragment_num is not None:
            # The fragment's event must be read again, to be split again.
            resume = start.token
            start = AtTime(resume.cluster_time)
        remote = replace(
            request, change_stream_options=options, stages=(*pushed, *split), start=start
        )
        return cls(remote, rest, tuple(own), bool(split), resume)


def divide(
    stages: Sequence[Mapping[str, Any]],
) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """Divide a pipeline into stages that can run before the lookup and stages that must follow it.

    Both parts together select and transform events as the whole pipeline does. A condition moves
    before the lookup only if this is certainly safe; an unknown condition stays after it. A
    condition on ``fullDocument`` stays after it too, but shards apply it to all events except
    updates, whose ``fullDocument`` the lookup does not change: as on mongos, a required image of an
    event that the condition leaves out may be missing. They do not apply one that fails for some
    values, since a server may evaluate it for updates too. Fields that a stage only removes are
    removed on the shards if the lookup needs none of them and no earlier condition stays after it:
    an event may be too large with them. A condition that never fails also moves before stages that
    leave its fields alone: events that it leaves out may be too large, or lack a required image.
    From a very large stage on, nothing is looked into, and all follows the lookup.
    """
    pushed: list[Mapping[str, Any]] = []
    rest: list[Mapping[str, Any]] = []
    examined = 0
    small = list(small_stages(stages))
    for stage in small:
        if not rest and _removes_what_no_lookup_needs(stage):
            pushed.append(stage)
            examined += 1
            continue
        if stage_name(stage) != "$match":
            break
        examined += 1
        early: list[Mapping[str, Any]] = []
        late: list[Mapping[str, Any]] = []
        for condition in conjuncts(stage["$match"], _is_untouched):
            if _is_untouched(condition):
                early.append(condition)
                continue
            if _accepts_all_values(condition):
                early.append({"$or": [_IS_UPDATE, condition]})
            late.append(condition)
        for part, conditions in ((pushed, early), (rest, late)):
            if conditions:
                part.append({"$match": conjunction(conditions)})
    pushed += _movable(small[examined:])
    return tuple(pushed), (*rest, *stages[examined:])


def _movable(stages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the conditions among the stages that may also be evaluated before all of them."""
    for place, stage in enumerate(stages):
        if stage_name(stage) != "$match":
            continue
        for condition in conjuncts(stage["$match"], _is_untouched):
            reads = reads_of(condition)
            if reads is None or reads.may_fail or _LOOKED_UP in reads.fields:
                continue
            if all(leaves_alone(each, reads.fields) for each in stages[:place]):
                yield {"$match": condition}


def _removes_what_no_lookup_needs(stage: Mapping[str, Any]) -> bool:
    """Return whether a stage only removes fields, none of which a lookup needs."""
    removed = fields_removed(stage)
    return removed is not None and removed.isdisjoint(_NEEDED)


def _is_untouched(condition: Mapping[str, Any]) -> bool:
    """Return whether a condition has the same result before and after the lookup."""
    reads = reads_of(condition)
    return reads is not None and _LOOKED_UP not in reads.fields


def _accepts_all_values(condition: Mapping[str, Any]) -> bool:
    """Return whether a condition can be evaluated for an update whose lookup is still to come."""
    reads = reads_of(condition)
    return reads is not None and not reads.may_fail
