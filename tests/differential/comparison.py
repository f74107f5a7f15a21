"""Comparing two readings of one stream."""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby

import bson
from bson import Timestamp

from tests.differential.plans import Plan, token_time
from tests.differential.raw_values import LENIENT
from tests.differential.reading import OF_SHARD, TOKEN_NOT_FOUND, Failure, Reading, decoded

_SHOWN = 1200
_NOTHING = bson.encode({})
_NO_UPDATES = frozenset(
    {
        "insert", "replace", "delete", "drop", "rename", "dropDatabase", "invalidate", "create",
        "createIndexes", "dropIndexes", "modify", "shardCollection",
    }
)  # fmt: skip
_CAUSED_BY = " :: caused by :: "


def differ_by_shard(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether both readings fail, in different ways that depend on which shard comes first.

    After lookups the router runs the stages itself, so its error names no shard. A merge that does
    not find its resume token may fail before a shard does, or after it.
    """
    theirs, ours = mongos.failures[-1:], router.failures[-1:]
    if theirs == ours or not theirs or not ours:
        return False
    looked_up = plan.stage.get("fullDocument") == "updateLookup"
    return theirs[0].message.startswith((OF_SHARD, TOKEN_NOT_FOUND)) and (
        looked_up or ours[0].message.startswith((OF_SHARD, TOKEN_NOT_FOUND))
    )


def differences(
    plan: Plan,
    mongos: Reading,
    router: Reading,
    end: Timestamp,
    of_shards: Sequence[Failure] = (),
    renamed: Set[tuple[str, str]] = frozenset(),
    *,
    legs: bool = False,
) -> list[str]:
    """Return the differences between the router's and mongos's readings up to ``end``.

    Properties that depend on timing are not compared: the batches' ends, promises between them,
    the events before another shard's error, which of several shards' errors comes first, the order
    of events with equal tokens, and whether a collection's documents are found after its rename.

    Args:
        plan: the plan of both readings.
        mongos: the reading through mongos.
        router: the reading through the router.
        end: the cluster time up to which both were read.
        of_shards: the errors of shards that were read alone.
        renamed: the namespaces that collections have left.
        legs: whether the router's reading was resumed on the way. A stream that resumes after one
            of several events with equal tokens receives none of the others, on any server.
    """
    if legs:
        repeated = {token for token, count in Counter(mongos.tokens).items() if count > 1}
        mongos, router = _once(mongos, repeated), _once(router, repeated)
    found = [f"wrong in itself through mongos: {each}" for each in mongos.wrong]
    found += [f"wrong in itself through the router: {each}" for each in router.wrong]
    found += _openings(plan, mongos, router)
    found += _failures(plan, mongos, router, of_shards)
    found += _events(plan, mongos, router, end, renamed)
    if mongos.invalidated != router.invalidated:
        found.append(f"closed by itself: mongos {mongos.invalidated}, router {router.invalidated}")
    elif mongos.invalidated and mongos.promises[-1][1] != router.promises[-1][1]:
        found.append(f"last token: mongos {mongos.promises[-1]}, router {router.promises[-1]}")
    if mongos.killed != router.killed:
        found.append(f"cursor there to be killed: mongos {mongos.killed}, router {router.killed}")
    return found


def _openings(plan: Plan, mongos: Reading, router: Reading) -> Iterator[str]:
    if mongos.opening != router.opening:
        yield f"opening: mongos {mongos.opening}, router {router.opening}"
    if not plan.starts_somewhere or not mongos.promises or not router.promises:
        return
    (first, promised), (ours, our_promise) = mongos.promises[0], router.promises[0]
    if not first and not ours and promised != our_promise:
        yield f"first token: mongos {promised}, router {our_promise}"


def _failures(
    plan: Plan, mongos: Reading, router: Reading, of_shards: Sequence[Failure]
) -> Iterator[str]:
    if mongos.failures == router.failures:
        return
    if differ_by_shard(plan, mongos, router):
        codes = {each.code for each in of_shards}
        last = [each.failures[-1] for each in (mongos, router)]
        if all(each.code in codes or each.message.startswith(TOKEN_NOT_FOUND) for each in last):
            return
    # Where stages run is mongos's and the router's own choice: a lookup, and what follows it, runs
    # on the router; mongos runs some other stages itself. The router itself finds fragments.
    looked_up = plan.stage.get("fullDocument") == "updateLookup"
    if looked_up or plan.splits or not any(OF_SHARD in each.message for each in mongos.failures):
        theirs, ours = ([_anywhere(each) for each in r.failures] for r in (mongos, router))
        if theirs == ours:
            return
    for name, reading in (("mongos", mongos), ("router", router)):
        shown = "; ".join(map(str, reading.failures)) or "none"
        yield f"errors through {name}: {shown}"
    if [str(each) for each in mongos.failures] == [str(each) for each in router.failures]:
        fields = [[each.fields for each in reading.failures] for reading in (mongos, router)]
        yield f"fields of errors: {fields}"


def _once(reading: Reading, repeated: Set[str]) -> Reading:
    """Return a reading with one empty event for all events of each repeated token."""
    pairs: list[tuple[str, bytes]] = []
    for token, event in reading.pairs:
        if token not in repeated:
            pairs.append((token, event))
        elif not pairs or pairs[-1][0] != token:
            pairs.append((token, _NOTHING))
    return replace(reading, tokens=[pair[0] for pair in pairs], events=[pair[1] for pair in pairs])


def _anywhere(failure: Failure) -> Failure:
    """Return a failure without its message's details of where it happened."""
    message = failure.message.rpartition(_CAUSED_BY)[2]
    return replace(failure, message=message)


def _events(
    plan: Plan, mongos: Reading, router: Reading, end: Timestamp, renamed: Set[tuple[str, str]]
) -> Iterator[str]:
    theirs, ours = _until(mongos, end), _until(router, end)
    if mongos.failures:
        # A shard's error ends the stream regardless of other shards' remaining events.
        shared = min(len(theirs), len(ours))
        theirs, ours = theirs[:shared], ours[:shared]
    theirs, ours = _settled(theirs), _settled(ours)
    if plan.stage.get("fullDocument") == "updateLookup":
        theirs, ours = _without_lookups(theirs, renamed), _without_lookups(ours, renamed)
    if _adds_to_looked_up(plan):
        theirs, ours = _in_any_order(theirs), _in_any_order(ours)
    if theirs == ours:
        return
    yield f"events: {len(theirs)} through mongos, {len(ours)} through the router"
    for number, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our:
            alike = _shown(their) == _shown(our)
            show = _as_bytes if alike else _shown
            yield f"event {number} through mongos: {show(their)}"
            yield f"event {number} through the router: {show(our)}"
            return
    more, name = (theirs, "mongos") if len(theirs) > len(ours) else (ours, "the router")
    yield f"only through {name}: {_shown(more[min(len(theirs), len(ours))])}"


def _until(reading: Reading, end: Timestamp) -> list[tuple[str, bytes]]:
    return [pair for pair in reading.pairs if token_time(pair[0]) <= end]


def _settled(events: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Sort events of several shards that have the same token into a fixed order."""
    groups = groupby(events, key=lambda pair: pair[0])
    return [pair for _, group in groups for pair in sorted(group)]


def _without_lookups(
    events: list[tuple[str, bytes]], namespaces: Set[tuple[str, str]]
) -> list[tuple[str, bytes]]:
    """Return the events without the updates in ``namespaces``.

    A stage may have changed the type and the namespace: then the event may be such an update. The
    documents that are looked up may also decide whether a filter lets it through.
    """
    return (
        [pair for pair in events if not _may_update(pair[1], namespaces)] if namespaces else events
    )


def _may_update(raw: bytes, namespaces: Set[tuple[str, str]]) -> bool:
    event = bson.decode(raw, LENIENT)
    namespace = event.get("ns")
    whole = isinstance(namespace, dict) and {"db", "coll"} <= namespace.keys()
    was_renamed = not whole or (namespace["db"], namespace["coll"]) in namespaces
    kind = event.get("operationType")
    return was_renamed and not (isinstance(kind, str) and kind in _NO_UPDATES)


def _adds_to_looked_up(plan: Plan) -> bool:
    """Return whether a stage may add ``fullDocument`` to an event without one, after the lookup."""
    return plan.stage.get("fullDocument") == "updateLookup" and any(
        name.startswith("fullDocument")
        for stage in plan.command["pipeline"]
        for name in (*stage.get("$set", {}), *stage.get("$addFields", {}))
    )


def _in_any_order(events: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Put the fields of each event into one order."""
    return [
        (token, bson.encode(dict(sorted(bson.decode(event, LENIENT).items()))))
        for token, event in events
    ]


def _as_bytes(pair: tuple[str, bytes]) -> str:
    return repr(pair[1])[:_SHOWN]


def _shown(pair: tuple[str, bytes]) -> str:
    return repr(decoded(pair[1]))[:_SHOWN]


def command_text(plan: Plan) -> str:
    """Return a plan as one line."""
    text = repr(bson.decode(bson.encode(plan.command), LENIENT))
    return f"{plan.name}: {plan.database} {text} more={list(plan.more)}" + (
        f" legs={plan.legs}" if plan.legs else ""
    )
