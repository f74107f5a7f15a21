"""MongoDB's extended JSON of BSON: of a value, and of many documents together at less cost.

A value is decoded in C and encoded by orjson where installed. orjson is optional on executors;
without it pymongo's encoder gives the same text.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.int64 import Int64
from bson.objectid import ObjectId

from shard_client.bson.values import DOCUMENT, INT32
from spark_sink.events.slices import Slice, decoded_documents, string_of
from spark_sink.rows.layouts import Layout, Values
from spark_sink.rows.text_columns import Pieces, TextColumns, UncommonError, joined_text

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)
# Earlier dates are numbers in extended JSON.
_FIRST_ISO_YEAR = 1970
# The milliseconds since 1970 before which dates have four digits of a year.
_LAST_ISO_DATE = 253_402_300_800_000


def relaxed_json(field: Slice) -> str:
    """Return a field as relaxed extended JSON. Raises UNREADABLE."""
    return _encode(_decoded(field))


def canonical_json(field: Slice) -> str:
    """Return a field as canonical extended JSON. Raises UNREADABLE."""
    return json_util.dumps(_decoded(field), json_options=json_util.CANONICAL_JSON_OPTIONS)


def _decoded(field: Slice) -> Any:
    if field.kind == DOCUMENT:
        return bson.decode(field.value, _CODEC)
    return bson.decode(field.wrapped(), _CODEC)["v"]


def _relaxed(value: Any) -> Any:
    """Return the JSON of a value of one of MongoDB's own types, which the encoders do not know."""
    if isinstance(value, ObjectId):
        return {"$oid": str(value)}
    if isinstance(value, datetime) and value.year >= _FIRST_ISO_YEAR:
        text = value.isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        return {"$date": text.removesuffix("+00:00") + "Z"}
    if isinstance(value, Int64):
        return int(value)
    return _finite(json_util.default(value, json_util.RELAXED_JSON_OPTIONS))


def _finite(value: Any) -> Any:
    """Return a value with its infinities and NaNs as extended JSON: JSON has no such numbers."""
    if isinstance(value, float) and value - value != 0.0:
        return json_util.default(value, json_util.RELAXED_JSON_OPTIONS)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return list(map(_finite, value)) if isinstance(value, list) else value


try:
    import orjson
except ImportError:

    def _encode(value: Any) -> str:
        """Return a value as JSON without spaces."""
        return json_util.dumps(
            value,
            json_options=json_util.RELAXED_JSON_OPTIONS,
            ensure_ascii=False,
            separators=(",", ":"),
        )

else:
    # Types that JSON lacks, and code, which is a subclass of str.
    _PASSED_ON = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS

    def _encode(value: Any) -> str:
        """Return a value as JSON without spaces."""
        encoded = orjson.dumps(value, default=_relaxed, option=_PASSED_ON)
        if b"null" in encoded:  # as an infinity or a NaN is written
            encoded = orjson.dumps(_finite(value), default=_relaxed, option=_PASSED_ON)
        return encoded.decode()


class _ReferenceError(Exception):
    """A document may be a reference, whose fields pymongo writes in an order of their own."""


class JsonColumns(TextColumns):
    """Writes the same texts as `relaxed_json` or `canonical_json`, of many documents together."""

    def __init__(self, *, canonical: bool = False) -> None:
        self._canonical = canonical
        self._to_json = canonical_json if canonical else relaxed_json
        self.separator, self.colon = (", ", ": ") if canonical else (",", ":")
        self.ascii_only = canonical

    def texts(self, documents: Values) -> pa.Array:
        """Return the texts of documents, or of other values. Raises UNREADABLE."""
        try:
            pieces = self.values(documents)
        except _ReferenceError:
            pieces = self._singly(documents)
        return joined_text(pieces, len(documents))

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        try:
            name.decode()
        except ValueError:
            raise UncommonError from None
        return self._to_json(string_of(name)) + self.colon

    def _singly(self, values: Values) -> Pieces:
        if values.kind == DOCUMENT and not self._canonical:
            texts = map(_encode, decoded_documents(values.to_list(), _CODEC))
        else:
            texts = map(self._to_json, values.slices())
        return [pa.array(texts, pa.string())]

    def _of_layout(self, layout: Layout) -> Pieces:
        if b"$ref" in layout.fields:
            raise _ReferenceError
        return super()._of_layout(layout)

    def _numbers(self, values: Values) -> Pieces:
        [numbers] = super()._numbers(values)
        if not self._canonical:
            return [numbers]
        return self.wrapped("$numberInt" if values.kind == INT32 else "$numberLong", numbers)

    def _doubles(self, values: Values) -> Pieces:
        if self._canonical:
            return self._singly(values)
        doubles = values.at(values.starts, "<f8")
        if not np.isfinite(doubles).all():
            raise UncommonError
        return [pa.array(_encode(doubles.tolist())[1:-1].split(","), pa.string())]

    def _dates(self, values: Values) -> Pieces:
        milliseconds = values.integers("<i8")
        is_usual = (milliseconds >= 0) & (milliseconds < _LAST_ISO_DATE)
        if self._canonical or not is_usual.all():
            return self._singly(values)
        times = pa.array(milliseconds).view(pa.timestamp("ms")).cast(pa.string())
        texts = pc.replace_substring(times, " ", "T", max_replacements=1)
        whole = milliseconds % 1000 == 0
        if whole.any():
            texts = pc.if_else(pa.array(whole), pc.utf8_slice_codeunits(texts, 0, 19), texts)
        return ['{"$date":"', texts, 'Z"}']
