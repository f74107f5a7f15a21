"""Extended JSON as MongoDB's Java driver writes it, character by character, from BSON.

Debezium makes three kinds of texts: documents in the driver's mode STRICT, and keys and the fields
of updates in its mode RELAXED, which differ from each other in their spaces. The texts are made
from the bytes without decoding documents to objects. That costs less, and it preserves differences
that Python's types lose. A message contains a text as a string, so columns of texts are written as
the content of JSON strings, with quotes and backslashes escaped.

The rules: https://github.com/mongodb/mongo-java-driver/tree/main/bson/src/main/org/bson/json
"""

from __future__ import annotations

import base64
import re
import struct
import sys
import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bson.decimal128 import Decimal128
from bson.errors import InvalidBSON
from numpy.typing import NDArray

from shard_client.bson import values
from shard_client.bson.values import DOCUMENT, INT32
from spark_sink.events.slices import values_in
from spark_sink.rows.layouts import Values
from spark_sink.rows.text_columns import Pieces, TextColumns

_INT = struct.Struct("<i").unpack_from
_LONG = struct.Struct("<q").unpack_from
_DOUBLE = struct.Struct("<d").unpack_from
_TIMES = struct.Struct("<II").unpack_from
_OLD_BINARY = 2
# Java writes numbers with an exponent from the first of these, and below the second.
_FIRST_EXPONENT, _FIRST_PLAIN = 1e7, 1e-3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_ISO_DATE = 253_402_300_799_999
_CACHED_NAMES = 10_000


class JavaJson:
    """Writes BSON as text.

    Args:
        relaxed: the mode RELAXED instead of STRICT.
        separator: the text between the fields of a document: "," if the driver indents by an empty
            text, otherwise ", ".
        plus: whether positive exponents have a sign ("1.0E+20"), as from version 5.5 of the driver.
    """

    def __init__(self, *, relaxed: bool, separator: str, plus: bool = True) -> None:
        self.relaxed = relaxed
        self.separator = separator
        self._plus = plus
        long = "%d" if relaxed else '{"$numberLong": "%d"}'
        self._writers: dict[int, Callable[[bytes], str]] = {
            values.STRING: lambda data: _text(data[4:-1]),
            INT32: lambda data: f"{_INT(data)[0]}",
            values.DOUBLE: lambda data: self.double(_DOUBLE(data)[0]),
            values.OBJECT_ID: lambda data: f'{{"$oid": "{data.hex()}"}}',
            DOCUMENT: self._document,
            values.ARRAY: self._array,
            values.DATE: lambda data: self._object("$date", self._time(*_LONG(data))),
            values.INT64: lambda data: long % _LONG(data),
            values.BOOLEAN: lambda data: "true" if data[0] else "false",
            values.NULL: lambda _: "null",
            values.CODE: lambda data: self._object("$code", _text(data[4:-1])),
            values.SYMBOL: lambda data: self._object("$symbol", _text(data[4:-1])),
            values.BINARY: lambda data: self._binary(data[4], data[5:]),
            values.DECIMAL: lambda data: self._object(
                "$numberDecimal", f'"{Decimal128.from_bid(data)}"'
            ),
            values.TIMESTAMP: self._timestamp,
            values.REGEX: lambda data: self._pattern(*data.split(b"\0")[:2]),
            values.CODE_WITH_SCOPE: self._code_with_scope,
            values.DB_POINTER: self._pointer,
            values.UNDEFINED: lambda _: '{"$undefined": true}',
            values.MIN_KEY: lambda _: '{"$minKey": 1}',
            values.MAX_KEY: lambda _: '{"$maxKey": 1}',
        }

    def value(self, kind: int, data: bytes) -> str:
        """Return the text of a value of a BSON type. Raises InvalidBSON."""
        try:
            return self._writers[kind](data)
        except (LookupError, ValueError, struct.error) as error:
            raise InvalidBSON(f"not a value: {error}") from error

    def _document(self, data: bytes) -> str:
        write = self._writers
        if _INT(data)[0] != len(data):
            raise InvalidBSON("a document does not have the size that it begins with")
        values = values_in(data, 0, len(data))
        texts = [_name(name) + write[kind](data[at:end]) for kind, name, at, end in values]
        return f"{{{self.separator.join(texts)}}}"

    def _array(self, data: bytes) -> str:
        write = self._writers
        texts = [write[kind](data[at:end]) for kind, _, at, end in values_in(data, 0, len(data))]
        return f"[{self.separator.join(texts)}]"

    def _timestamp(self, data: bytes) -> str:
        increment, seconds = _TIMES(data)
        time = f'{{"t": {seconds}{self.separator}"i": {increment}}}'
        return self._object("$timestamp", time)

    def _code_with_scope(self, data: bytes) -> str:
        scope = 8 + _INT(data, 4)[0]
        code = _text(data[8 : scope - 1])
        return self._object("$code", code, "$scope", self._document(data[scope:]))

    def _pointer(self, data: bytes) -> str:
        identifier = self._object("$oid", f'"{data[-12:].hex()}"')
        return self._object("$ref", _text(data[4:-13]), "$id", identifier)

    def _object(self, *parts: str) -> str:
        """Return an object of names and values in turn; the values are JSON."""
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return "{" + self.separator.join(f'"{name}": {value}' for name, value in pairs) + "}"

    def double(self, value: float) -> str:
        """Return the text of a double."""
        if _FIRST_PLAIN <= value < _FIRST_EXPONENT:
            return repr(value)
        if -_FIRST_EXPONENT < value <= -_FIRST_PLAIN or value == 0.0:
            return repr(value)
        if value - value == 0.0:
            return _with_exponent(value, plus=self._plus)
        text = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        return self._object("$numberDouble", f'"{text}"') if self.relaxed else text

    def _time(self, milliseconds: int) -> str:
        """Return the text of a date's value; `milliseconds` are since 1970."""
        if not self.relaxed:
            return f"{milliseconds}"
        if not 0 <= milliseconds <= _LAST_ISO_DATE:
            return self._object("$numberLong", f'"{milliseconds}"')
        seconds, rest = divmod(milliseconds, 1000)
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="seconds")[:-6]
        return f'"{text}.{rest:03}'.rstrip("0") + 'Z"' if rest else f'"{text}Z"'

    def _binary(self, kind: int, data: bytes) -> str:
        if kind == _OLD_BINARY:
            data = data[4:]  # which has its size twice
        text, name = f'"{base64.b64encode(data).decode()}"', f'"{kind:02X}"'
        if self.relaxed:
            return self._object("$binary", self._object("base64", text, "subType", name))
        return self._object("$binary", text, "$type", name)

    def _pattern(self, pattern: bytes, options: bytes) -> str:
        texts = _text(pattern), _text(bytes(sorted(options)))
        if self.relaxed:
            inner = self._object("pattern", texts[0], "options", texts[1])
            return self._object("$regularExpression", inner)
        return self._object("$regex", texts[0], "$options", texts[1])


def embedded(text: str) -> str:
    """Return a text as the inside of a string of JSON."""
    return encode_basestring(text)[1:-1]


def _column(texts: Iterable[str]) -> pa.Array:
    return pa.array(map(embedded, texts), pa.string())


class JavaColumns(TextColumns):
    """Writes columns of values with a `JavaJson`."""

    quote = '\\"'
    colon = ": "
    ascii_only = True

    def __init__(self, json: JavaJson) -> None:
        self._json = json
        self.separator = json.separator

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        return embedded(_name(name))

    def _singly(self, values: Values) -> Pieces:
        return [_column(self._json.value(values.kind, value) for value in values.to_list())]

    def _numbers(self, values: Values) -> Pieces:
        [numbers] = super()._numbers(values)
        if values.kind == INT32 or self._json.relaxed:
            return [numbers]
        return self.wrapped("$numberLong", numbers)

    def _dates(self, values: Values) -> Pieces:
        if self._json.relaxed:
            return self._singly(values)
        dates = pa.array(values.integers("<i8"))
        return ['{\\"$date\\": ', dates.cast(pa.string()), "}"]

    def _doubles(self, values: Values) -> Pieces:
        doubles: NDArray[Any] = values.at(values.starts, "<f8")
        sizes = np.abs(doubles)
        # Arrow writes these as Java does.
        plain = (sizes >= _FIRST_PLAIN) & (sizes < _FIRST_EXPONENT) | (sizes == 0)
        numbers = doubles if plain.all() else np.where(plain, doubles, 0.5)
        texts = pa.array(numbers).cast(pa.string())
        whole = np.trunc(numbers) == numbers
        if whole.any():
            points = pc.if_else(pa.array(whole), ".0", "")
            texts = pc.binary_join_element_wise(texts, points, "")
        if not plain.all():
            others = _column(map(self._json.double, doubles[~plain].tolist()))
            texts = pc.replace_with_mask(texts, pa.array(~plain), others)
        return [texts]


@lru_cache(_CACHED_NAMES)
def _name(name: bytes) -> str:
    """Return the text of a field's name, with what separates it from the value."""
    return f"{_text(name)}: "


def _text(data: bytes) -> str:
    """Return a string with quotes, escaped as the driver does."""
    return escaped(encode_basestring(data.decode(errors="replace")))


def escaped(text: str) -> str:
    """Return a JSON string, with those characters escaped that only the driver escapes."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _uncommon_characters().sub(_as_units, text)


def _with_exponent(value: float, *, plus: bool) -> str:
    """Return a number as Java's Double.toString writes it with an exponent.

    It has the fewest digits that identify the double, but at least two.
    """
    text = repr(value)
    digits = len(re.sub(r"e.*|\D", "", text).strip("0"))
    if digits == 1 and float(f"{value:.1e}") == value:
        text = f"{value:.1e}"
    mantissa, _, exponent = f"{Decimal(text).normalize():e}".partition("e")
    number = int(exponent)
    point = "" if "." in mantissa else ".0"
    return f"{mantissa}{point}E{'+' if plus and number >= 0 else ''}{number}"


# The general categories of characters that the driver writes as they are.
_WRITTEN = {
    "Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Zs", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
    "Sc", "Sk", "So",
}  # fmt: skip


@lru_cache(1)
def _uncommon_characters() -> re.Pattern[str]:
    """Return a pattern of the characters that the driver escapes in addition to JSON's."""
    plane = map(chr, range(0x7F, 0x10000))
    others = "".join(
        character for character in plane if unicodedata.category(character) not in _WRITTEN
    )
    return re.compile(f"[{others}\U00010000-{chr(sys.maxunicode)}]")


def _as_units(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
