"""Compares messages with Debezium's: sets, order, and every field.

What is normalised is what two runs of Debezium itself do not agree on, or its own mistakes. The
remaining differences are in docs/debezium.md.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from tests.debezium.engine import Message


def normalised(message: Message, *, snapshot: bool = False) -> Message:
    """Return a message without the times at which it was made.

    In a snapshot `source`'s times are such too, and `last` marks whichever message was the last.
    The counts of collections in END are sorted, which Debezium gives in a hash's order.
    """
    if message.value is None:
        return message
    whole = json.loads(message.value, object_pairs_hook=_pairs)
    value = whole.get("payload", whole)
    if "status" in value:
        if value["data_collections"] is not None:
            value["data_collections"].sort(key=lambda each: str(each["data_collection"]))
    else:
        value["ts_ms"] = 0
    if snapshot:
        value["source"] |= dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), 0)
        if value["source"]["snapshot"] == "last":
            value["source"]["snapshot"] = "true"
        if value["source"]["snapshot"] == "incremental":  # the place of the last event before
            value["source"]["ord"] = 0
    return message._replace(value=json.dumps(whole, ensure_ascii=False))


def differences(
    debezium: Iterable[Message], ours: Iterable[Message], *, snapshot: bool = False
) -> list[str]:
    """Return what differs between two lists of messages: first each message, then their order.

    The messages of a snapshot are not ordered.
    """
    one = [normalised(each, snapshot=snapshot) for each in debezium]
    other = [normalised(each, snapshot=snapshot) for each in ours]
    if snapshot:
        one, other = sorted(one, key=str), sorted(other, key=str)
    if one == other:
        return []
    counts = Counter(one)
    counts.subtract(other)
    missing = [each for each, count in counts.items() if count > 0]
    more = [each for each, count in counts.items() if count < 0]
    found = _of_fields(missing, more)
    if not found:
        at = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        found.append(f"another order: message {at} is {one[at]} / {other[at]}")
    return found


def _of_fields(missing: list[Message], more: list[Message]) -> list[str]:
    """Return the differences of messages that are alike: of one topic and key, in their order."""
    found = []
    counterparts = defaultdict(list)
    for each in more:
        counterparts[each.topic].append(each)
    for each in missing:
        of_topic = counterparts[each.topic]
        if not of_topic:
            found.append(f"missing: {each}")
            continue
        same_key = [other for other in of_topic if other.key == each.key]
        other = (same_key or of_topic)[0]
        of_topic.remove(other)
        found += _between(each, other)
    return found + [f"too many: {each}" for rest in counterparts.values() for each in rest]


def _between(one: Message, other: Message) -> list[str]:
    found = [] if one.key == other.key else [f"key: {one.key} / {other.key}"]
    if one.value is None or other.value is None:
        return [*found, f"value: {one.value} / {other.value}"]
    paths = dict(_flat("", json.loads(one.value))), dict(_flat("", json.loads(other.value)))
    names = dict.fromkeys([*paths[0], *paths[1]])
    found += [
        f"{one.topic} {name}: {paths[0].get(name, 'absent')!r} / {paths[1].get(name, 'absent')!r}"
        for name in names
        if paths[0].get(name, "absent") != paths[1].get(name, "absent")
    ]
    return found or [f"order of fields: {one.value} / {other.value}"]


def _flat(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(f"{path}.{name}", each)
    else:
        yield path, value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), f"a field occurs twice: {pairs}"
    return found
