"""Division of a request into the part that the shards run and the part after the lookup."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from router.change_stream.request import AfterToken, AtTime, StreamRequest
from router.change_stream.resume_token import ResumeToken
from router.change_stream.stages import stage_name

UPDATE_LOOKUP: Final = "updateLookup"

_LOOKED_UP: Final = "fullDocument"
"""The field that a lookup changes, in events of updates and in no others."""

_NEEDED: Final = frozenset(
    {"_id", "operationType", "ns", "documentKey", "clusterTime", "collectionUUID", _LOOKED_UP}
)
"""The fields that a lookup reads or changes."""

_IS_UPDATE: Final = {"operationType": "update"}

_LOGICAL: Final = ("$and", "$or", "$nor")

_OPERATORS: Final = frozenset(
    {
        "$all",
        "$elemMatch",
        "$eq",
        "$exists",
        "$gt",
        "$gte",
        "$in",
        "$lt",
        "$lte",
        "$mod",
        "$ne",
        "$nin",
        "$not",
        "$options",
        "$regex",
        "$size",
        "$type",
    }
)
"""Match operators that depend only on the value at their path."""

_EXPRESSIONS: Final = frozenset(
    {
        "$and",
        "$cmp",
        "$eq",
        "$gt",
        "$gte",
        "$ifNull",
        "$in",
        "$isArray",
        "$lt",
        "$lte",
        "$ne",
        "$not",
        "$or",
        "$type",
    }
)
"""Operators of ``$expr`` that depend only on their operands."""


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
    event that the condition leaves out may be missing. Fields that a stage only removes are removed
    on the shards if the lookup needs none of them and no earlier condition stays after it: an event
    may be too large with them.
    """
    pushed: list[Mapping[str, Any]] = []
    rest: list[Mapping[str, Any]] = []
    for position, stage in enumerate(stages):
        if not rest and _removes_what_no_lookup_needs(stage):
            pushed.append(stage)
            continue
        if stage_name(stage) != "$match":
            rest.extend(stages[position:])
            break
        early: list[Mapping[str, Any]] = []
        late: list[Mapping[str, Any]] = []
        for condition in _conjuncts(stage["$match"]):
            if _is_untouched(condition):
                early.append(condition)
                continue
            if _depends_on_paths_alone(condition):
                early.append({"$or": [_IS_UPDATE, condition]})
            late.append(condition)
        for part, conditions in ((pushed, early), (rest, late)):
            if conditions:
                part.append({"$match": _conjunction(conditions)})
    return tuple(pushed), tuple(rest)


def _removes_what_no_lookup_needs(stage: Mapping[str, Any]) -> bool:
    """Return whether a stage only removes fields, none of which a lookup needs."""
    name = stage_name(stage)
    operand = stage[name]
    if name == "$unset":
        paths = operand if isinstance(operand, (list, tuple)) else [operand]
    elif name == "$project" and isinstance(operand, Mapping):
        if not all(isinstance(value, (bool, int)) and not value for value in operand.values()):
            return False
        paths = list(operand)
    else:
        return False
    return bool(paths) and all(
        isinstance(path, str) and path.partition(".")[0] not in _NEEDED for path in paths
    )


def _conjuncts(match: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield conditions whose conjunction is the whole condition, as small as they can be.

    A ``$nor`` is divided into the operands that a lookup does not change and the others, as mongos
    divides it.
    """
    for name, value in match.items():
        if name == "$and" and _are_documents(value):
            for each in value:
                yield from _conjuncts(each)
        elif name == "$nor" and _are_documents(value):
            early = [each for each in value if _is_untouched(each)]
            late = [each for each in value if not _is_untouched(each)]
            yield from ({"$nor": operands} for operands in (early, late) if operands)
        else:
            yield {name: value}


def _conjunction(conditions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return conditions[0] if len(conditions) == 1 else {"$and": list(conditions)}


def _is_untouched(condition: Mapping[str, Any]) -> bool:
    """Return whether a condition has the same result before and after the lookup."""
    return _depends_on_paths_alone(condition) and _LOOKED_UP not in _fields(condition)


def _depends_on_paths_alone(condition: Mapping[str, Any]) -> bool:
    """Return whether a condition consists of known operators on the values at paths."""
    for name, value in condition.items():
        if name in _LOGICAL:
            if not _are_documents(value) or not all(map(_depends_on_paths_alone, value)):
                return False
        elif name == "$expr":
            if not _reads_paths_alone(value):
                return False
        elif name != "$comment" and (name.startswith("$") or not _is_plain(value)):
            return False
    return True


def _fields(condition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first field of each path of a condition that depends on paths alone."""
    for name, value in condition.items():
        if name in _LOGICAL:
            for each in value:
                yield from _fields(each)
        elif name == "$expr":
            yield from _fields_of_expression(value)
        else:
            yield name.partition(".")[0]


def _reads_paths_alone(expression: Any) -> bool:
    """Return whether an expression consists of known operators on constants and paths."""
    if isinstance(expression, Mapping):
        known = all(name in _EXPRESSIONS for name in expression)
        return known and all(map(_reads_paths_alone, expression.values()))
    if isinstance(expression, (list, tuple)):
        return all(map(_reads_paths_alone, expression))
    return not (isinstance(expression, str) and expression.startswith("$$"))


def _fields_of_expression(expression: Any) -> Iterator[str]:
    """Yield the first field of each path that an expression of ``_EXPRESSIONS`` reads."""
    if isinstance(expression, Mapping):
        for operand in expression.values():
            yield from _fields_of_expression(operand)
    elif isinstance(expression, (list, tuple)):
        for operand in expression:
            yield from _fields_of_expression(operand)
    elif isinstance(expression, str) and expression.startswith("$"):
        yield expression[1:].partition(".")[0]


def _is_plain(value: Any) -> bool:
    """Return whether a condition on a path is a value or consists of known operators."""
    if not isinstance(value, Mapping):
        return True
    if not any(name.startswith("$") for name in value):
        return True
    return all(
        name in _OPERATORS and (name not in ("$not", "$elemMatch") or _is_plain(operand))
        for name, operand in value.items()
    )


def _are_documents(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(each, Mapping) for each in value)
    )
