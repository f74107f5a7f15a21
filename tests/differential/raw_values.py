"""Random documents and updates in BSON that drivers never write, and stages that look at them.

Their values, filters and projections are those of tests/filters/chance.py.
"""

import struct
from contextlib import suppress
from random import Random
from typing import Any

import bson
from bson import Decimal128, Int64
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidBSON

from tests.filters.chance import NAMES, Chance

LENIENT: CodecOptions[dict[str, Any]] = CodecOptions(
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Decodes these documents too, though not to every detail."""

_STRICT: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO
)

_FIELDS = (*NAMES, "n", "tags", "sub")
"""The names of the fields; ``values.document`` has the last ones too."""


def document(chance: Random, number: int) -> dict[str, Any]:
    """Return a document, whose ``_id`` ``number`` makes unlike others."""
    drawn = Chance(chance, repeated=True)
    kind = chance.random()
    key: Any = number
    if kind < 0.1:
        key = Decimal128.from_bid(struct.pack("<QQ", number, 0x3041FFFFFFFFFFFF))
    elif kind < 0.5:
        key = {chance.choice(NAMES): drawn.value(), "n": Int64(number)}
    shard_key = chance.randrange(60) if chance.random() < 0.9 else chance.choice((None, "a", 1.5))
    names = chance.sample(_FIELDS, chance.randrange(2, len(_FIELDS)))
    return {"_id": key, "k": shard_key, **{name: drawn.value() for name in names}}


def update(chance: Random) -> Any:
    """Return an update by operators or by a pipeline."""
    value = Chance(chance, repeated=True).value()
    path = ".".join(
        (chance.choice(_FIELDS), *chance.choices((*NAMES, "0", "1"), k=chance.choice((0, 0, 1, 2))))
    )
    kind = chance.random()
    if kind < 0.6:
        return {"$set": {path: value}}
    if kind < 0.8:
        return {"$push": {path: value}}
    return [{"$set": {path: {"$literal": value}}}]


def stage(chance: Random) -> dict[str, Any]:
    """Return a stage that looks into these documents; as in all commands, its texts are UTF-8."""
    kind = chance.random()
    if kind < 0.04:  # the error's message shows the value
        return {"$set": {"number": {"$toInt": f"$fullDocument.{chance.choice(_FIELDS)}"}}}
    drawn = Chance(chance, repeated=True)
    while True:
        drawn_stage = drawn.projection() if kind < 0.22 else {"$match": drawn.filter()}
        with suppress(InvalidBSON):
            bson.decode(bson.encode(drawn_stage), _STRICT)
            return drawn_stage
