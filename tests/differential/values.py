"""Random BSON values and documents, of the kinds that tokens, diffs and filters distinguish."""

from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

_WORDS = ("", "a", "A", "b", "straße", "\u0000zero", "zz", "Ω", "insert", "x" * 40)


def date(chance: Random) -> datetime:
    """Return a point in time."""
    return datetime.fromtimestamp(chance.randrange(2_000_000_000), UTC)


def scalar(chance: Random) -> Any:
    """Return a value that may be an ``_id`` or part of a shard key."""
    return chance.choice(_SCALARS)(chance)


_SCALARS = (
    lambda c: c.randrange(-3, 30),
    lambda c: c.choice((-1, 1)) * c.randrange(1 << 31, 1 << 62),
    lambda c: c.choice((0.0, -0.0, 1.5, -2.25, 1e300, float("inf"), float("nan"))),
    lambda c: c.choice(_WORDS),
    lambda c: ObjectId(c.randbytes(12)),
    lambda c: Decimal128(c.choice(("1.50", "-7", "NaN", "1E+100", "0"))),
    date,
    lambda c: Binary(c.randbytes(5), c.choice((0, 5, 128))),
    lambda c: Binary(UUID(int=c.getrandbits(128)).bytes, 4),
    lambda c: c.random() < 0.5,
    lambda c: None,
    lambda c: Timestamp(c.randrange(1 << 31), c.randrange(1000)),
    lambda c: c.choice((MinKey(), MaxKey())),
)


def value(chance: Random, depth: int = 2) -> Any:
    """Return any value that a field may have."""
    kind = chance.random()
    if depth and kind < 0.15:
        return [value(chance, depth - 1) for _ in range(chance.randrange(5))]
    if depth and kind < 0.3:
        names = chance.sample(("a", "b", "c", "0", "1", "long name"), chance.randrange(4))
        return {name: value(chance, depth - 1) for name in names}
    if kind < 0.34:
        return Regex("^a.*", "i")
    return scalar(chance)


def document(chance: Random, key: Any) -> dict[str, Any]:
    """Return a document whose ``_id`` is ``key``, with fields that the workload updates."""
    made: dict[str, Any] = {
        "_id": key,
        "k": chance.randrange(60),
        "n": chance.randrange(-2, 5),
        "tags": [chance.choice(_WORDS) for _ in range(chance.randrange(5))],
        "sub": {"a": value(chance, 1), "b": {"c": chance.randrange(9)}},
    }
    if chance.random() < 0.3:
        made["any"] = value(chance)
    if chance.random() < 0.1:
        made["text"] = chance.choice(_WORDS) * chance.randrange(200)
    return made


def key(chance: Random, number: int) -> Any:
    """Return an ``_id``: mostly a number of its own, sometimes a value that may clash."""
    if chance.random() < 0.8:
        return number
    if chance.random() < 0.2:
        return {"of": scalar(chance), "n": Int64(number)}
    return scalar(chance)


def update(chance: Random) -> dict[str, Any] | list[dict[str, Any]]:
    """Return an update by operators or by a pipeline; some do nothing."""
    made: dict[str, Any] | list[dict[str, Any]] = chance.choice(_UPDATES)(chance)
    return made


_UPDATES = (
    lambda c: {"$inc": {"n": c.choice((1, -1))}},
    lambda c: {"$set": {"sub.a": value(c, 1), f"f{c.randrange(4)}": value(c)}},
    lambda c: {"$set": {"n": c.randrange(3)}},
    lambda c: {"$unset": {c.choice(("sub.b", "any", "f1", "tags")): 1}},
    lambda c: {"$push": {"tags": {"$each": ["p", "q"], "$slice": -4}}},
    lambda c: {"$pop": {"tags": 1}},
    lambda c: {"$set": {"tags.1": "second", "sub.b.c": 7}},
    lambda c: {"$set": {"sub.0": 1, "a.b.0.c": c.randrange(3)}},
    lambda c: {"$rename": {"any": "once"}},
    lambda c: [{"$set": {"tags": {"$slice": ["$tags", 1]}, "n": {"$add": [1, "$k"]}}}],
    lambda c: [{"$unset": ["sub.a", "text"]}, {"$set": {"sub.b": {"$literal": {"x.y": 1}}}}],
    lambda c: [{"$replaceWith": {"_id": "$_id", "k": "$k", "n": 0, "made": "anew"}}],
    lambda c: {"$currentDate": {"at": {"$type": "timestamp"}}},
    lambda c: {"$bit": {"k": {"or": 0}}},
)
