"""Columns of texts as `JavaJson` makes of each value.

A message contains the text as a string. So it is written as the content of a JSON string, with
quotes and backslashes escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shard_client.bson.values import ARRAY, DOCUMENT, INT32
from spark_sink.debezium.java_json import JavaJson
from spark_sink.rows.layouts import Field, JoinedEvents
from spark_sink.rows.text_columns import Pieces, TextColumns, special_bytes

# Java writes doubles between these, and zero, without an exponent; Arrow writes them likewise.
_LEAST_PLAIN, _FIRST_EXPONENT = 1e-3, 1e7


def embedded(text: str) -> str:
    """Return a text as the inside of a string of JSON."""
    return encode_basestring(text)[1:-1]


class JavaColumns(TextColumns):
    """Writes columns of values with a `JavaJson`."""

    quote = '\\"'
    colon = ": "
    special = special_bytes(ascii_only=True)

    def __init__(self, json: JavaJson) -> None:
        self._json = json
        self.separator = json.separator

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        return embedded(self._json.name(name))

    def text(self, kind: int, value: bytes) -> str:
        """Return the text of one value. Raises InvalidBSON."""
        if kind == DOCUMENT:
            return self._json.document(value)
        return self._json.array(value) if kind == ARRAY else self._json.value(kind, value)

    def written(self, texts: Iterable[str]) -> pa.Array:
        """Return texts of single values as a column."""
        return pa.array(map(embedded, texts), pa.string())

    def _numbers(self, joined: JoinedEvents, field: Field) -> Pieces:
        [numbers] = super()._numbers(joined, field)
        if field.kind == INT32 or self._json.relaxed:
            return [numbers]
        return self.wrapped("$numberLong", numbers)

    def _dates(self, joined: JoinedEvents, field: Field) -> Pieces:
        if self._json.relaxed:
            return self._singly(joined, field)
        dates = pa.array(joined.integers(field.starts, "<i8"))
        return ['{\\"$date\\": ', dates.cast(pa.string()), "}"]

    def _doubles(self, joined: JoinedEvents, field: Field) -> Pieces:
        doubles: NDArray[Any] = joined.integers(field.starts, "<f8")
        sizes = np.abs(doubles)
        plain = (sizes >= _LEAST_PLAIN) & (sizes < _FIRST_EXPONENT) | (sizes == 0)
        numbers = doubles if plain.all() else np.where(plain, doubles, 0.5)
        texts = pa.array(numbers).cast(pa.string())
        whole = np.trunc(numbers) == numbers
        if whole.any():
            points = pc.if_else(pa.array(whole), ".0", "")
            texts = pc.binary_join_element_wise(texts, points, "")
        if not plain.all():
            others = self.written(map(self._json.double, doubles[~plain].tolist()))
            texts = pc.replace_with_mask(texts, pa.array(~plain), others)
        return [texts]
