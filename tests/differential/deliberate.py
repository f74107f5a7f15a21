"""Where the router differs from mongos on purpose (docs/protocol.md#differences)."""

from collections.abc import Sequence

from tests.differential.plans import Plan, is_invalidate, token_time
from tests.differential.reading import OF_SHARD, TOKEN_NOT_FOUND, Failure, Reading

_OPTIMIZED = 7182803
_TOO_LARGE = 10334
_ON_A_VIEW = 166
_CHANGED = "was modified by the pipeline"
_EVENT_OF_VERSION_1 = "2B022C0100"
"""What follows the cluster time in the version 1 token of an event, in hexadecimal."""


def is_deliberate(
    plan: Plan, mongos: Reading, router: Reading, of_shards: Sequence[Failure] = ()
) -> bool:
    """Return whether the differences between two readings of ``plan`` are meant.

    Args:
        plan: the plan of both readings.
        mongos: the reading through mongos.
        router: the reading through the router.
        of_shards: the errors of shards that were read alone, from the token's time on.
    """
    return (
        plan.damaged
        or _resumes_after_what_it_leaves_out(plan, mongos, router)
        or _splits_from_a_version_1_token(plan, mongos)
        or _fails_at_the_event_it_resumes_after(plan, mongos)
        or _looks_up_after_the_event_it_resumes_after(plan, mongos, router)
        or _matches_sessions_of_retryable_writes(plan, mongos, router)
        or _reads_what_others_write(plan, mongos, router)
        or _is_invalid_on_a_time_series(mongos, router)
        or _moves_once_its_name_is_a_view_s(plan, mongos, router)
        or _changes_ids_and_delivers_nothing(plan, mongos, router)
        or _fails_beside_its_token(plan, mongos, router, of_shards)
        or _filters_a_large_event_itself(plan, mongos, router)
        or _reshapes_what_no_shard_can_send(plan, mongos, router)
        or _projects_irregular_documents(plan, mongos, router)
        or _OPTIMIZED in (failure.code for failure in mongos.failures)
    )


def _resumes_after_what_it_leaves_out(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether the stages leave out the event that the stream resumes after.

    Whether and when a server misses it depends on how much of the stages it runs before it looks
    for the event.
    """
    missed = [_missed(reading) for reading in (mongos, router)]
    return missed[0] != missed[1] and len(plan.command["pipeline"]) > 1


def _missed(reading: Reading) -> bool:
    return any(failure.message.startswith(TOKEN_NOT_FOUND) for failure in reading.failures)


def _splits_from_a_version_1_token(plan: Plan, mongos: Reading) -> bool:
    """Return whether a stream with fragments starts after a version 1 token and ends at its cluster
    time: mongos makes that invalidate's token in version 1, the router in version 2.
    """
    if not any("$changeStreamSplitLargeEvent" in stage for stage in plan.command["pipeline"]):
        return False
    token = (plan.stage.get("startAfter") or plan.stage.get("resumeAfter") or {}).get("_data", "")
    if not isinstance(token, str) or token[18:28] != _EVENT_OF_VERSION_1:
        return False
    return any(
        token_time(each) == token_time(token) for each in filter(is_invalidate, mongos.tokens)
    )


def _fails_at_the_event_it_resumes_after(plan: Plan, mongos: Reading) -> bool:
    """Return whether mongos's shards ran stages that change ``_id`` on the token's own event."""
    failures = mongos.failures[-1:]
    return (
        _resumes(plan) and not mongos.events and any(_CHANGED in each.message for each in failures)
    )


def _looks_up_after_the_event_it_resumes_after(
    plan: Plan, mongos: Reading, router: Reading
) -> bool:
    """Return whether mongos's shards fail in a stage on the token's own event.

    With ``updateLookup`` the router runs the stage itself, on the events after the token, where it
    may fail at a later one.
    """
    theirs, ours = mongos.failures[-1:], router.failures[-1:]
    return (
        _resumes(plan)
        and plan.stage.get("fullDocument") == "updateLookup"
        and not mongos.events
        and any(failure.message.startswith(OF_SHARD) for failure in theirs)
        and not any(failure in theirs or failure.message.startswith(OF_SHARD) for failure in ours)
    )


def _matches_sessions_of_retryable_writes(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether mongos's shards compare a condition on ``lsid`` or ``txnNumber`` with oplog
    entries: those of retryable writes have these fields, their events do not.

    Behind a lookup the router compares it with the events.
    """
    conditions = str([stage["$match"] for stage in plan.command["pipeline"] if "$match" in stage])
    return (
        plan.stage.get("fullDocument") == "updateLookup"
        and ("'lsid" in conditions or "'txnNumber" in conditions)
        and set(mongos.tokens) < set(router.tokens)
    )


def _reads_what_others_write(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether a stream of the whole cluster fails, through one server alone, at an event
    that another seed may still have written while it was read.
    """
    filtered = any("ns.db" in str(stage.get("$match")) for stage in plan.command["pipeline"])
    if not plan.stage.get("allChangesForCluster") or filtered:
        return False
    failing, other = (mongos, router) if mongos.failures else (router, mongos)
    shared = len(failing.events)
    return bool(failing.failures) and not other.failures and failing.events == other.events[:shared]


def _is_invalid_on_a_time_series(mongos: Reading, router: Reading) -> bool:
    """Return whether both refuse a stream of a time-series collection, mongos for its stages."""
    theirs, ours = ([failure.code for failure in each.failures] for each in (mongos, router))
    return bool(theirs) and not mongos.promises and ours == [_ON_A_VIEW]


def _moves_once_its_name_is_a_view_s(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether a stream was opened before there was a view of its name, and its reader has
    moved since: shards refuse to open it again.
    """
    theirs, ours = ([failure.code for failure in each.failures] for each in (mongos, router))
    return plan.live and not theirs and ours == [_ON_A_VIEW] and router.events == mongos.events


def _changes_ids_and_delivers_nothing(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether a stage changes ``_id``, other stages filter, and neither stream delivers.

    Which event the streams fail at, if at any, depends on whether the filter moves ahead.
    """
    stages = plan.command["pipeline"][1:]
    changes = any(_CHANGED in failure.message for failure in mongos.failures[-1:]) or any(
        stage.get(name, {}).get("_id", 1) != 1
        for stage in stages
        for name in ("$project", "$set", "$addFields")
        if isinstance(stage.get(name, {}), dict)
    )
    return changes and _filters(plan) and not mongos.events and not router.events


def _fails_beside_its_token(
    plan: Plan, mongos: Reading, router: Reading, of_shards: Sequence[Failure]
) -> bool:
    """Return whether a shard fails at an event at the resume token's own time: it has no required
    image, or a stage fails.

    mongos's shards drop the events before the token before they look for images and run stages.
    They may fail at a later event.
    """
    codes = {failure.code for failure in router.failures}
    return (
        _resumes(plan)
        and bool(codes)
        and codes.isdisjoint(failure.code for failure in mongos.failures)
        and not router.events
        and codes <= {failure.code for failure in of_shards}
    )


def _filters_a_large_event_itself(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether mongos's shards fail to send an event that mongos itself would filter."""
    codes = [failure.code for failure in mongos.failures]
    shared = len(mongos.events)
    return (
        _filters(plan)
        and codes == [_TOO_LARGE]
        and not router.failures
        and router.events[:shared] == mongos.events
    )


def _reshapes_what_no_shard_can_send(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether a stage after a lookup makes an event small, or leaves it out, that is too
    large without the document: mongos's shards run it, the router's shards have to send the event.
    """
    shared = len(router.events)
    stages = plan.command["pipeline"][1:]
    shrinks = {"$replaceRoot", "$replaceWith", "$redact"}
    return (
        plan.stage.get("fullDocument") == "updateLookup"
        and any(
            shrinks & set(each) or "'fullDocument" in str(each.get("$match")) for each in stages
        )
        and [failure.code for failure in router.failures] == [_TOO_LARGE]
        and not mongos.failures
        and mongos.events[:shared] == router.events
    )


def _projects_irregular_documents(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether a stage names fields inside documents that no driver writes, and the events
    differ in these: they may have two fields of one name, or arrays with names of their own.
    """
    stages = plan.command["pipeline"][1:]
    named = [stage.get("$project") or stage.get("$unset") or () for stage in stages]
    paths = [path for each in named for path in ([each] if isinstance(each, str) else each)]
    return (
        plan.raw
        and any("." in path for path in paths)
        and not mongos.failures
        and not router.failures
        and mongos.tokens == router.tokens
    )


def _resumes(plan: Plan) -> bool:
    """Return whether the stream starts after a token."""
    return not {"startAfter", "resumeAfter"}.isdisjoint(plan.stage)


def _filters(plan: Plan) -> bool:
    """Return whether a stage leaves out events."""
    stages = plan.command["pipeline"][1:]
    return any({"$match", "$redact"} & set(stage) for stage in stages)
