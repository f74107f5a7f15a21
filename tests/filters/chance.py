"""Random documents shaped like change events, and filters that often match them."""

import struct
from random import Random
from typing import Any

from bson import Binary, Code, DBRef, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument

Document = dict[str, Any]

NAMES = ("a", "b", "c")
_ID = ObjectId("0123456789abcdef01234567")
_OTHER_ID = ObjectId("fedcba9876543210fedcba98")

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, Int64(1), Int64(2**53), Int64(2**53 + 1), Int64(2**63 - 1), Int64(-(2**63)),
    0.0, -0.0, 1.0, 1.5, 0.1, -1.5, 9.99, float(2**53), float(2**63), 1e300, 5e-324,
    float("nan"), float("inf"), float("-inf"),
    Decimal128("0"), Decimal128("-0"), Decimal128("1"), Decimal128("1.0"), Decimal128("1.50"),
    Decimal128("0.1"), Decimal128("9.99"), Decimal128("NaN"), Decimal128("-NaN"),
    Decimal128("Infinity"), Decimal128("-Infinity"), Decimal128("1E+300"), Decimal128("1E+6000"),
    Decimal128("1E-6000"), Decimal128("9007199254740993"), Decimal128("9223372036854775808"),
    # A double's exact value has more digits than a decimal: the nearest decimals around 0.1.
    Decimal128("0.1000000000000000055511151231257827"),
    Decimal128("0.1000000000000000055511151231257828"),
    Decimal128("0.100000000000000"), Decimal128("9.990000000000000213162820728030056"),
    Decimal128("9.999999999999999999999999999999999E+6144"), Decimal128("-1E-6176"),
    # Not canonical: coefficients from 10**34 on, infinities and NaNs with further bits.
    *(Decimal128.from_bid(struct.pack("<QQ", low, high)) for low, high in (
        (0x378D8E6400000000, 0x3040_0000_0000_0000 | 0x0001_ED09_BEAD_87C0),  # 10**34
        (0x378D8E63FFFFFFFF, 0x3040_0000_0000_0000 | 0x0001_ED09_BEAD_87C0),  # 10**34 - 1
        (2**64 - 1, 0x3041_FFFF_FFFF_FFFF), (2**64 - 1, 0xB041_FFFF_FFFF_FFFF),
        (1, 0x6C10_0000_0000_0001), (1, 0xEC10_0000_0000_0001), (7, 0x6000_0000_0000_0000),
        (1, 0x7800_0000_0000_0001), (5, 0xF9FF_0000_0000_0000),
        (9, 0x7C00_0000_0000_0009), (9, 0xFE00_0000_0000_0001), (2**64 - 1, 2**64 - 1),
    )),
)  # fmt: skip
STRINGS = ("", "a", "ab", "abc", "b", "B", "é", "a\0b", "a\nb", "1", "insert")
_BINARIES = (Binary(b""), Binary(b"a"), Binary(b"a", 4), Binary(b"a", 128), Binary(b"ab", 2))
OTHERS: tuple[Any, ...] = (
    None, True, False, _ID, _OTHER_ID, MinKey(), MaxKey(),
    DatetimeMS(0), DatetimeMS(-1), DatetimeMS(1), DatetimeMS(2**62),
    Timestamp(0, 0), Timestamp(1, 1), Timestamp(1, 2), Timestamp(2**32 - 1, 0),
    *_BINARIES,
    Regex("^a"), Regex("^a", "i"), Regex("b"), Code("f"), Code("f", {"a": 1}),
    DBRef("c", 1),
)  # fmt: skip


def text(characters: bytes) -> bytes:
    """Return a string's BSON value."""
    return struct.pack("<i", len(characters) + 1) + characters + b"\0"


def document(*elements: bytes) -> bytes:
    """Return a document's BSON of its elements."""
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


_UNUSUAL = (
    b"\x06a\0",  # undefined
    b"\x0ea\0" + text(b"ab"),  # a symbol
    b"\x0ca\0" + text(b"c") + b"\1" * 12,  # a DBPointer
    b"\x02a\0" + text(b"a\xff"),  # not UTF-8
    b"\x04a\0" + document(b"\x060\0", b"\x0e1\0" + text(b"a")),  # an array of such values
    b"\x04a\0" + document(b"\x03" b"0\0" + document(b"\x06b\0")),
    b"\x10b\0\1\0\0\0",
    # Arrays whose elements are not named by their indexes.
    b"\x04a\0" + document(b"\x027\0" + text(b"a"), b"\x03x\0" + document(b"\x10a\0\1\0\0\0")),
    b"\x04b\0" + document(b"\x041\0" + document(b"\x10\0\1\0\0\0"), b"\x0a1\0", b"\x0a1\0"),
    b"\x04a\0" + document(b"\x030\0" + document(b"\x04b\0" + document(b"\x08a\0\1"))),
)  # fmt: skip
"""BSON elements that drivers do not write."""

_REPEATED = (
    b"\x10a\0\1\0\0\0\x10a\0\2\0\0\0",
    b"\x02a\0" + text(b"a") + b"\x03a\0" + document(b"\x10b\0\1\0\0\0"),
)
"""Elements with one name; what a projection does with them is undefined."""


class Chance:
    """Draws documents and filters; ``random`` makes all choices.

    With ``repeated``, documents may have two fields of one name.
    """

    def __init__(self, random: Random, *, repeated: bool) -> None:
        self._random = random
        self._unusual = _UNUSUAL + _REPEATED if repeated else _UNUSUAL

    def event(self) -> Document:
        """Return a document shaped like a change event, without the token."""
        chance = self._random
        event: Document = {
            "operationType": chance.choice(("insert", "update", "delete", "invalidate")),
            "clusterTime": Timestamp(1, 1),
        }
        if chance.random() < 0.9:
            event["fullDocument"] = None if chance.random() < 0.05 else self._contents()
        if chance.random() < 0.8:
            event["ns"] = {"db": chance.choice(STRINGS), "coll": "c"}
        if chance.random() < 0.2:
            event["to"] = {"db": chance.choice(STRINGS), "coll": "c"}
        if chance.random() < 0.6:
            event["documentKey"] = self._contents()
        if chance.random() < 0.5:
            dotted = chance.random() < 0.2
            fields = {"a.b": self.value()} if dotted else self._contents()
            event["updateDescription"] = {"updatedFields": fields, "removedFields": []}
        if chance.random() < 0.3:
            event["fullDocumentBeforeChange"] = self._contents()
        return event

    def events(self, count: int) -> list[Document]:
        """Return documents shaped like change events, many of which are built alike."""
        chance = self._random
        events = [self.event() for _ in range(count)]
        for n in range(1, count):
            if chance.random() < 0.5:
                events[n] = self._alike(events[chance.randrange(n)])
        return events

    def _alike(self, value: Any) -> Any:
        """Return a value with the same fields of the same types, and mostly other contents."""
        chance = self._random
        if isinstance(value, dict):
            return {name: self._alike(inner) for name, inner in value.items()}
        if isinstance(value, str) and chance.random() < 0.5:
            return chance.choice(STRINGS)
        if type(value) is Binary:
            return chance.choice(_BINARIES)
        return value

    def value(self, depth: int = 0) -> Any:
        """Return a value of any type."""
        chance = self._random
        kind = chance.random()
        if depth < 3 and kind < 0.2:
            return [self.value(depth + 1) for _ in range(chance.randrange(4))]
        if depth < 3 and kind < 0.45:
            return self._contents(depth + 1)
        if kind < 0.5:
            return RawBSONDocument(document(chance.choice(self._unusual)))
        domain = chance.choices((NUMBERS, STRINGS, OTHERS), (4, 3, 3))[0]
        return chance.choice(domain)

    def filter(self, depth: int = 0) -> Document:
        """Return a filter; most are valid and of the class that the router evaluates."""
        chance = self._random
        if depth < 3 and chance.random() < 0.25:
            parts = [self.filter(depth + 1) for _ in range(chance.randrange(1 - depth // 2, 4))]
            return {chance.choice(("$and", "$or", "$nor")): parts}
        return {self._path(): self._condition() for _ in range(chance.choice((1, 1, 1, 2)))}

    def projection(self) -> Document:
        """Return a ``$project`` or ``$unset`` stage, often a valid one."""
        chance = self._random
        named = list({self._path() for _ in range(chance.randrange(1, 4))})
        if chance.random() < 0.4:
            return {"$unset": named if len(named) > 1 or chance.random() < 0.5 else named[0]}
        flags = (1, True, 2, Int64(7)) if chance.random() < 0.6 else (0, False, Int64(0))
        fields: Document = {name: chance.choice(flags) for name in named}
        if chance.random() < 0.2:
            fields["_id"] = chance.choice((0, 1))
        if chance.random() < 0.2:
            flag = flags[0]
            fields["ns"] = chance.choice(({"db": flag}, {"db": flag, "coll": flag}, {}, "$a"))
        return {"$project": fields}

    def _contents(self, depth: int = 0) -> Document:
        chance = self._random
        names = (*NAMES, *NAMES, "0")
        return {chance.choice(names): self.value(depth) for _ in range(chance.randrange(4))}

    def _path(self) -> str:
        chance = self._random
        if chance.random() < 0.2:
            return chance.choice(
                ("operationType", "ns.db", "ns.coll", "to.db", "to.coll", "ns.db.a", "ns.coll.a",
                 "ns.db.a.b", "fullDocument.0", "clusterTime", "fullDocument.a.0.b",
                 "fullDocument..a")
            )  # fmt: skip
        root = chance.choice(
            (*("fullDocument",) * 5, "documentKey", "fullDocumentBeforeChange", "ns",
             "updateDescription.updatedFields")
        )  # fmt: skip
        return ".".join((root, *chance.choices(NAMES, k=chance.choice((0, 1, 1, 1, 2, 2, 3)))))

    def _condition(self) -> Any:
        chance = self._random
        kind = chance.random()
        if kind < 0.15:
            return self.value()
        if kind < 0.3:  # what many documents have
            return chance.choice((None, "a", "ab", 1))
        if kind < 0.35:
            return Regex(chance.choice(_PATTERNS))
        condition = self._operator()
        if kind < 0.5:
            condition = {**condition, **self._operator()}
        while chance.random() < 0.2:
            condition = {"$not": condition}
        return condition

    def _operator(self) -> Document:
        chance = self._random
        name = chance.choice(
            ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$type",
             "$regex", "$size")
        )  # fmt: skip
        if name in ("$in", "$nin"):
            return {name: [self.value(2) for _ in range(chance.randrange(4))]}
        if name == "$exists":
            return {name: chance.choice((True, False, 0, 1))}
        if name == "$type":
            kinds = chance.choices(_TYPES, k=chance.randrange(3))
            return {name: kinds if len(kinds) != 1 or chance.random() < 0.3 else kinds[0]}
        if name == "$regex":
            options = {"$options": chance.choice(("", "i"))} if chance.random() < 0.3 else {}
            return {name: chance.choice(_PATTERNS), **options}
        return {name: 1 if name == "$size" else self.value()}


_TYPES: tuple[Any, ...] = (
    "double", "string", "object", "array", "binData", "undefined", "objectId", "bool", "date",
    "null", "regex", "dbPointer", "javascript", "symbol", "javascriptWithScope", "int",
    "timestamp", "long", "decimal", "minKey", "maxKey", "number", 1, 2.0, 4, 127, -1, 0, 20, 1.5,
    "nothing",
)  # fmt: skip
_PATTERNS = ("^a", "^", "^ab", "^é", "^a.", "a", "^a|b", "^a\nb", "^A-", "^a", "^ab")
