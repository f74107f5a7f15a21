"""Decoding of KeyStrings into BSON values (docs/protocol.md#resume-tokens)."""

import math
import struct
from decimal import Context, Decimal
from typing import Any, Final

from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from embedded import keystring as ks
from embedded import keystring_numbers as numbers
from shard_client.errors import CommandError

_MASK: Final = (1 << 64) - 1
_MAX_DEPTH: Final = 200
_FLAGS: Final = {"i": 2, "l": 4, "m": 8, "s": 16, "u": 32, "x": 64}
_CONSTANTS: Final[dict[int, Any]] = {
    ks.MIN_KEY: MinKey(),
    15: None,
    ks.NULLISH: None,
    ks.FALSE: False,
    ks.TRUE: True,
    ks.MAX_KEY: MaxKey(),
}


def decode_key(key: bytes, type_bits: bytes = b"") -> list[Any]:
    """Return the values of ``key``, up to the byte that ends keys.

    ``type_bits`` are in their stored form.

    Raises:
        CommandError: the KeyString is malformed; with the server's codes.
    """
    return _Decoder(key, _unpack_bits(type_bits)).values()


def _unpack_bits(stored: bytes) -> list[int]:
    if not stored or stored == b"\x00":
        return []
    if stored[0] == 0x80:
        data = stored[5:]
    elif stored[0] & 0x80:
        data = stored[1:]
    else:
        data = stored
    return [(byte >> place) & 1 for byte in data for place in range(8)]


class _Decoder:
    def __init__(self, key: bytes, bits: list[int]) -> None:
        self._key = key
        self._at = 0
        self._bits = iter(bits)

    def values(self) -> list[Any]:
        found: list[Any] = []
        while self._at < len(self._key):
            first = self._byte()
            if first == ks.END:
                break
            found.append(self._value(first, 1))
        return found

    def _take(self, count: int) -> bytes:
        rest = len(self._key) - self._at
        if count > rest:
            raise CommandError(
                15,
                f"Invalid advance ({count}) past end of buffer[{rest}] at offset: 0",
                code_name="Overflow",
            )
        taken = self._key[self._at : self._at + count]
        self._at += count
        return taken

    def _byte(self) -> int:
        return self._take(1)[0]

    def _word(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def _bit(self) -> int:
        return next(self._bits, 0)

    def _bit_number(self, count: int) -> int:
        number = 0
        for _ in range(count):
            number = number << 1 | self._bit()
        return number

    def _cut(self) -> bytes:
        end = self._key.find(b"\x00", self._at)
        if end < 0:
            raise CommandError(
                50816, "KeyString format error: Failed to find null terminator in string."
            )
        taken = self._key[self._at : end]
        self._at = end + 1
        return taken

    def _text(self) -> str:
        parts = [self._cut()]
        while self._key[self._at : self._at + 1] == b"\xff":
            self._at += 1
            parts.append(self._cut())
        return _as_text(b"\x00".join(parts))

    def _value(self, first: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise CommandError(
                15,
                "KeyString format error: KeyString encoding exceeded maximum allowable BSON "
                "nesting depth",
                code_name="Overflow",
            )
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if numbers.NAN <= first <= numbers.POSITIVE_LARGE:
            return self._number(first)
        if first == ks.OBJECT:
            return self._fields(depth)
        if first == ks.ARRAY:
            items = []
            while (item := self._byte()) != 0:
                items.append(self._value(item, depth + 1))
            return items
        return self._scalar(first, depth)

    def _scalar(self, first: int, depth: int) -> Any:
        if first == ks.STRING:
            self._bit()
            return self._text()
        if first == ks.BIN_DATA:
            size = self._byte()
            if size == 0xFF:
                size = int.from_bytes(self._take(4), "big")
            subtype = self._byte()
            return Binary(self._take(size), subtype)
        if first == ks.OBJECT_ID:
            return ObjectId(self._take(12))
        if first == ks.DATE:
            return DatetimeMS(self._word() - (1 << 63))
        if first == ks.TIMESTAMP:
            word = self._word()
            return Timestamp(word >> 32, word & 0xFFFFFFFF)
        if first == ks.REGEX:
            pattern, flags = _as_text(self._cut()), _as_text(self._cut())
            return Regex(pattern, sum(_FLAGS.get(letter, 0) for letter in flags))
        if first == ks.CODE:
            return Code(self._text())
        if first == ks.CODE_WITH_SCOPE:
            text = self._text()
            return Code(text, self._fields(depth + 1))
        raise CommandError(50829, f"KeyString format error: Unknown type: {first}.")

    def _fields(self, depth: int) -> dict[str, Any]:
        document: dict[str, Any] = {}
        while self._byte() != 0:
            name = _as_text(self._cut())
            document[name] = self._value(self._byte(), depth + 1)
        return document

    def _number(self, first: int) -> Any:
        if first == numbers.ZERO:
            return self._zero()
        kind = self._bit_number(2)
        exponent = self._bit_number(6) if kind == 3 and first != numbers.NAN else None
        if first == numbers.NAN:
            return Decimal128("NaN") if kind == 3 else math.nan
        negative = first <= numbers.NEGATIVE_SMALL
        value = self._magnitude(first, negative, kind == 3)
        if negative:
            value = value.copy_negate() if isinstance(value, Decimal) else -value
        if kind == 3:
            return _as_decimal(value, exponent)
        if kind == 2:
            return float(value)
        return Int64(int(value)) if kind == 1 else int(value)

    def _zero(self) -> Any:
        kind = self._bit_number(2)
        if kind < 3:
            return (0, Int64(0), 0.0)[kind]
        special = self._bit_number(3)
        if special == 0:
            return -0.0
        which = (special - 2 << 12) | self._bit_number(12)
        negative, biased = divmod(which, 12288)
        return Decimal128(Decimal((negative, (0,), biased - numbers.EXPONENT_BIAS)))

    def _body(self, size: int, negative: bool) -> int:
        data = self._take(size)
        return int.from_bytes(bytes(b ^ 0xFF for b in data) if negative else data, "big")

    def _magnitude(self, first: int, negative: bool, decimal: bool) -> Any:
        if first in (numbers.NEGATIVE_LARGE, numbers.POSITIVE_LARGE):
            return self._large(negative)
        if first in (numbers.NEGATIVE_SMALL, numbers.POSITIVE_SMALL):
            return self._small(negative)
        size = numbers.NEGATIVE_1_BYTE - first if negative else first - numbers.POSITIVE_1_BYTE
        shifted = self._body(size + 1, negative)
        integer = shifted >> 1
        if not shifted & 1:
            return integer
        if integer < 1 << 53:
            return self._fraction(integer, 7 - size, negative)
        marker = numbers.ABOVE_15_DIGITS
        if integer < 1 << 55 and (size == 6):
            marker = self._body(1, negative) & 3
        return self._marked(Decimal(integer), marker, negative)

    def _fraction(self, integer: int, fraction_bytes: int, negative: bool) -> Any:
        rest = self._body(fraction_bytes, negative) if fraction_bytes else 0
        whole = (integer << (8 * fraction_bytes)) + (rest & ~3)
        double = math.ldexp(float(whole), -8 * fraction_bytes)
        return self._marked(double, rest & 3, negative)

    def _large(self, negative: bool) -> Any:
        body = self._body(8, negative)
        if body == _MASK:
            return math.inf
        if body >> 63:
            return _from_halves(body & ~(1 << 63), self._body(8, negative))
        marker = numbers.ABOVE_15_DIGITS if body & 1 else numbers.EXACT
        bits = (body >> 1) | (1 << 62)
        return self._marked(_as_double(bits), marker, negative)

    def _small(self, negative: bool) -> Any:
        body = self._body(8, negative)
        prefix = body >> 62
        if prefix == 3:
            return self._marked(_as_double(body >> 2), body & 3, negative)
        if prefix == 0:
            return _from_halves(body, self._body(8, negative))
        scaled = _as_double((body - (1 << 62)) >> 1)
        marker = numbers.ABOVE_15_DIGITS if body & 1 else numbers.EXACT
        if marker and scaled < numbers.SMALLEST_NORMAL_SCALED:
            stored, unit = numbers.unscaled_tiny(scaled)
            rest = Decimal(self._body(8, negative)).scaleb(unit)
            return Context(prec=34).add(stored, rest)
        return self._marked(math.ldexp(scaled, -numbers.TINY_SHIFT), marker, negative)

    def _marked(self, stored: Any, marker: int, negative: bool) -> Any:
        """Undo a decimal's rounding to a double as its marker requires."""
        if marker == numbers.EXACT:
            return stored
        if marker == numbers.EQUALS_15_DIGITS:
            return numbers.to_15_digits_up(Decimal(stored))
        base = numbers.to_34_digits_up(Decimal(stored))
        unit = base.adjusted() - 33
        return Context(prec=34).add(base, Decimal(self._body(8, negative)).scaleb(unit))


def _as_double(bits: int) -> float:
    return float(struct.unpack(">d", bits.to_bytes(8, "big"))[0])


def _from_halves(high: int, low: int) -> Decimal:
    raw = low.to_bytes(8, "little") + high.to_bytes(8, "little")
    return Decimal128.from_bid(raw).to_decimal()


def _as_text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _as_decimal(value: Any, stored_exponent: int | None) -> Decimal128:
    """Restore a decimal's exponent from its stored low six bits, if its digits allow that."""
    exact = Decimal(value)
    context = Context(prec=34, Emin=-6143, Emax=6144)
    if not exact.is_finite() or stored_exponent is None:
        return Decimal128(exact)
    exact = context.create_decimal(exact).normalize(context)
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    lowering = (exponent + numbers.EXPONENT_BIAS - stored_exponent) & 0x3F
    if lowering <= 34 - len(digits):
        exact = Decimal((exact.is_signed(), digits + (0,) * lowering, exponent - lowering))
    return Decimal128(exact)
