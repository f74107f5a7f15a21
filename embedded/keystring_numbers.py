"""Numbers in KeyString: all four BSON number types share one order
(docs/protocol.md#resume-tokens).

A number's first byte encodes its sign and size class. The bytes after it are big-endian and, for
negative numbers, inverted. A decimal that no double equals is stored as the next double towards
zero, a two-bit marker and, if necessary, the rest of its digits as a 64-bit continuation.
"""

import math
import struct
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from typing import Final

from bson.decimal128 import Decimal128

NAN: Final = 30
NEGATIVE_LARGE: Final = 31
NEGATIVE_8_BYTES: Final = 32
NEGATIVE_1_BYTE: Final = 39
NEGATIVE_SMALL: Final = 40
ZERO: Final = 41
POSITIVE_SMALL: Final = 42
POSITIVE_1_BYTE: Final = 43
POSITIVE_8_BYTES: Final = 50
POSITIVE_LARGE: Final = 51

EXACT: Final = 0
BELOW_15_DIGITS: Final = 1
EQUALS_15_DIGITS: Final = 2
ABOVE_15_DIGITS: Final = 3

TINIEST_WITH_MARKER: Final = math.ldexp(1.0, -255)
TINY_SHIFT: Final = 256
SMALLEST_NORMAL_SCALED: Final = math.ldexp(1.0, TINY_SHIFT - 1022)
EXPONENT_BIAS: Final = 6176
_MAX_BIASED_EXPONENT: Final = 12287
_LARGE: Final = float(1 << 63)
_INTEGERS_IN_DOUBLES: Final = float(1 << 53)
_LARGEST_DOUBLE: Final = float.fromhex("0x1.fffffffffffffp+1023")
_SMALLEST_NORMAL: Final = float.fromhex("0x1p-1022")
_MASK: Final = (1 << 64) - 1
_WIDE: Final = Context(prec=13000)
_TO_15_UP: Final = Context(prec=15, rounding=ROUND_UP)
_TO_34_UP: Final = Context(prec=34, rounding=ROUND_UP)
_TO_34_DOWN: Final = Context(prec=34, rounding=ROUND_DOWN)


def to_15_digits_up(value: Decimal) -> Decimal:
    """Round to 15 digits, away from zero: the decimal that a stored double represents."""
    return _TO_15_UP.create_decimal(value)


def to_34_digits_up(value: Decimal) -> Decimal:
    """Round to 34 digits, away from zero: the base to which a continuation is added."""
    return _TO_34_UP.create_decimal(value)


def _signed(first: int, body: bytes, negative: bool) -> bytes:
    return bytes((first,)) + (bytes(b ^ 0xFF for b in body) if negative else body)


def encode_integer(value: int) -> bytes:
    """Encode an integer of 32 or 64 bits."""
    if value == 0:
        return bytes((ZERO,))
    if value == -(1 << 63):
        return _encode_large(float(value), EXACT)
    return _encode_shifted(abs(value) << 1, value < 0)


def _encode_shifted(shifted: int, negative: bool) -> bytes:
    """Encode an integer that is shifted left by one; the lowest bit marks a fraction."""
    size = (shifted.bit_length() + 7) // 8
    first = NEGATIVE_1_BYTE - (size - 1) if negative else POSITIVE_1_BYTE + (size - 1)
    return _signed(first, shifted.to_bytes(size, "big"), negative)


def encode_double(value: float, marker: int = EXACT) -> bytes:
    """Encode a double; ``marker`` encodes how a decimal stored as this double differs from it."""
    magnitude = abs(value)
    if math.isnan(value):
        return bytes((NAN,))
    if magnitude == 0.0:
        return bytes((ZERO,))
    if magnitude < 1.0:
        return _encode_small(value, marker)
    if magnitude >= _LARGE:
        return _encode_large(value, marker)
    integer = int(magnitude)
    if integer == magnitude and marker == EXACT:
        return _encode_shifted(integer << 1, value < 0)
    fraction_bytes = (64 - (integer << 1).bit_length()) // 8
    first = NEGATIVE_8_BYTES + fraction_bytes if value < 0 else POSITIVE_8_BYTES - fraction_bytes
    body = int(math.ldexp(magnitude, 8 * fraction_bytes))
    body += (integer + 1) << (8 * fraction_bytes)
    return _signed(first, (body | marker).to_bytes(8, "big"), value < 0)


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value), "big")


def _encode_small(value: float, marker: int) -> bytes:
    magnitude = abs(value)
    if magnitude >= TINIEST_WITH_MARKER:
        body = ((_bits(magnitude) << 2) | marker) & _MASK
    else:
        scaled = math.ldexp(magnitude, TINY_SHIFT)
        body = ((_bits(scaled) << 1) | (marker != EXACT)) + (1 << 62)
    first = NEGATIVE_SMALL if value < 0 else POSITIVE_SMALL
    return _signed(first, body.to_bytes(8, "big"), value < 0)


def _encode_large(value: float, marker: int) -> bytes:
    shifted = (_bits(abs(value)) << 1) & ~(1 << 63)
    body = _MASK if math.isinf(value) else shifted | (marker != EXACT)
    first = NEGATIVE_LARGE if value < 0 else POSITIVE_LARGE
    return _signed(first, body.to_bytes(8, "big"), value < 0)


def decimal_zero_kind(value: Decimal) -> int:
    """Return the number of a decimal zero among the 24,576 kinds, for the type bits."""
    sign, _, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return exponent + EXPONENT_BIAS + (_MAX_BIASED_EXPONENT + 1 if sign else 0)


def stored_exponent(value: Decimal) -> int:
    """Return the six exponent bits that the type bits store for a non-zero decimal."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return (exponent + EXPONENT_BIAS) & 0x3F


def _double_toward_zero(value: Decimal) -> float:
    nearest = float(value)
    if math.isinf(nearest):
        return math.copysign(_LARGEST_DOUBLE, nearest)
    if Decimal(nearest).copy_abs() > value.copy_abs():
        return math.nextafter(nearest, 0.0)
    return nearest


def encode_decimal(value: Decimal) -> bytes:
    """Encode a decimal of up to 34 digits, without its type bits."""
    if value.is_nan():
        return bytes((NAN,))
    if value.is_infinite():
        return encode_double(float(value))
    if value.is_zero():
        return bytes((ZERO,))
    double = _double_toward_zero(value)
    if Decimal(double) == value:
        return encode_double(double)
    magnitude = abs(double)
    if magnitude < _SMALLEST_NORMAL:
        return _encode_tiny(value, double)
    if magnitude >= _LARGEST_DOUBLE:
        return _encode_huge(value)
    if magnitude >= _LARGE or magnitude < TINIEST_WITH_MARKER:
        head = encode_double(double, ABOVE_15_DIGITS)
        stored = _TO_34_UP.create_decimal(Decimal(double))
    elif magnitude >= _INTEGERS_IN_DOUBLES:
        return _encode_long_decimal(value)
    else:
        rounded = _TO_15_UP.create_decimal(Decimal(double))
        if rounded == value:
            return encode_double(double, EQUALS_15_DIGITS)
        below = (value < rounded) != (value < 0)
        head = encode_double(double, BELOW_15_DIGITS if below else ABOVE_15_DIGITS)
        stored = _TO_34_UP.create_decimal(Decimal(double))
    return head + _continuation(value, stored)


def _encode_long_decimal(value: Decimal) -> bytes:
    """Encode a decimal between 2**53 and 2**63, whose integer part may not fit in a double."""
    negative = value < 0
    integer = int(value.copy_abs())
    has_fraction = integer != value.copy_abs()
    head = _encode_shifted((integer << 1) | has_fraction, negative)
    if not has_fraction:
        return head
    if integer < 1 << 55:
        head += bytes((ABOVE_15_DIGITS ^ (0xFF if negative else 0),))
    return head + _continuation(value, Decimal(-integer if negative else integer))


def _continuation(value: Decimal, stored: Decimal) -> bytes:
    """Encode the difference of ``value`` and ``stored``, in units of ``stored``'s 34th digit."""
    unit = stored.adjusted() - 33
    rest = int(_WIDE.scaleb(_WIDE.subtract(value.copy_abs(), stored.copy_abs()), -unit))
    body = rest.to_bytes(8, "big")
    return _signed(0, body, value < 0)[1:]


def _normalized_halves(magnitude: Decimal) -> tuple[int, int]:
    """Return the two halves of the Decimal128 format, with the digits shifted up to the limit."""
    _, digits, exponent = magnitude.as_tuple()
    assert isinstance(exponent, int)
    shift = min(34 - len(digits), exponent + EXPONENT_BIAS)
    padded = Decimal((0, digits + (0,) * shift, exponent - shift))
    raw = Decimal128(padded).bid
    return int.from_bytes(raw[8:], "little"), int.from_bytes(raw[:8], "little")


def _encode_huge(value: Decimal) -> bytes:
    high, low = _normalized_halves(value.copy_abs())
    body = (high | (1 << 63)).to_bytes(8, "big") + low.to_bytes(8, "big")
    return _signed(NEGATIVE_LARGE if value < 0 else POSITIVE_LARGE, body, value < 0)


def _encode_tiny(value: Decimal, double: float) -> bytes:
    """Encode a decimal below the smallest normal double."""
    first = NEGATIVE_SMALL if value < 0 else POSITIVE_SMALL
    magnitude = value.copy_abs()
    if double == 0.0:
        high, low = _normalized_halves(magnitude)
        return _signed(first, high.to_bytes(8, "big") + low.to_bytes(8, "big"), value < 0)
    up = _TO_34_DOWN.create_decimal(Decimal(math.ldexp(1.0, TINY_SHIFT)))
    scaled = _double_toward_zero(_TO_34_DOWN.multiply(magnitude, up))
    scaled = max(scaled, math.ldexp(abs(double), TINY_SHIFT))
    head = (((_bits(scaled) << 1) | 1) + (1 << 62)).to_bytes(8, "big")
    stored, unit = unscaled_tiny(scaled)
    rest = int(_WIDE.scaleb(_WIDE.subtract(magnitude, stored), -unit))
    return _signed(first, head + rest.to_bytes(8, "big"), value < 0)


def unscaled_tiny(scaled: float) -> tuple[Decimal, int]:
    """Return the decimal that a scaled double below the normal range represents.

    The second value is the exponent of the unit of a continuation.
    """
    down = _TO_34_DOWN.create_decimal(Decimal(math.ldexp(1.0, -TINY_SHIFT)))
    stored = _TO_34_DOWN.multiply(_TO_34_DOWN.create_decimal(Decimal(scaled)), down)
    return stored, max(stored.adjusted() - 33, -EXPONENT_BIAS)
