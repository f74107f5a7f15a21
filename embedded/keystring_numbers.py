"""Numbers in KeyString: integers and doubles share one order (docs/protocol.md#resume-tokens).

A number's first byte encodes its sign and size class. The bytes after it are big-endian and, for
negative numbers, inverted.
"""

import math
import struct
from typing import Final

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

_TINIEST_UNSCALED: Final = math.ldexp(1.0, -255)
_TINY_SHIFT: Final = 256
_LARGE: Final = float(1 << 63)
_MASK: Final = (1 << 64) - 1


def _signed(first: int, body: bytes, negative: bool) -> bytes:
    return bytes((first,)) + (bytes(b ^ 0xFF for b in body) if negative else body)


def encode_integer(value: int) -> bytes:
    """Encode an integer of 32 or 64 bits."""
    if value == 0:
        return bytes((ZERO,))
    if value == -(1 << 63):
        return _encode_large(float(value))
    return _encode_shifted(abs(value) << 1, value < 0)


def _encode_shifted(shifted: int, negative: bool) -> bytes:
    """Encode an integer that is shifted left by one; the lowest bit marks a fraction."""
    size = (shifted.bit_length() + 7) // 8
    first = NEGATIVE_1_BYTE - (size - 1) if negative else POSITIVE_1_BYTE + (size - 1)
    return _signed(first, shifted.to_bytes(size, "big"), negative)


def encode_double(value: float) -> bytes:
    """Encode a double."""
    magnitude = abs(value)
    if math.isnan(value):
        return bytes((NAN,))
    if magnitude == 0.0:
        return bytes((ZERO,))
    if magnitude < 1.0:
        return _encode_small(value)
    if magnitude >= _LARGE:
        return _encode_large(value)
    integer = int(magnitude)
    if integer == magnitude:
        return _encode_shifted(integer << 1, value < 0)
    fraction_bytes = (64 - (integer << 1).bit_length()) // 8
    first = NEGATIVE_8_BYTES + fraction_bytes if value < 0 else POSITIVE_8_BYTES - fraction_bytes
    body = int(math.ldexp(magnitude, 8 * fraction_bytes))
    body += (integer + 1) << (8 * fraction_bytes)
    return _signed(first, body.to_bytes(8, "big"), value < 0)


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value), "big")


def _encode_small(value: float) -> bytes:
    magnitude = abs(value)
    if magnitude >= _TINIEST_UNSCALED:
        body = (_bits(magnitude) << 2) & _MASK
    else:
        body = (_bits(math.ldexp(magnitude, _TINY_SHIFT)) << 1) + (1 << 62)
    first = NEGATIVE_SMALL if value < 0 else POSITIVE_SMALL
    return _signed(first, body.to_bytes(8, "big"), value < 0)


def _encode_large(value: float) -> bytes:
    shifted = (_bits(abs(value)) << 1) & ~(1 << 63)
    body = _MASK if math.isinf(value) else shifted
    first = NEGATIVE_LARGE if value < 0 else POSITIVE_LARGE
    return _signed(first, body.to_bytes(8, "big"), value < 0)
