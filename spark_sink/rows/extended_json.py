"""MongoDB's extended JSON of BSON: of a value, and of many documents together at less cost.

A value is decoded in C and encoded by orjson where installed. orjson is optional on executors;
without it pymongo's encoder gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from spark_sink.events.slices import UNREADABLE, Slice, decoded_documents, string_of
from spark_sink.rows.layouts import Indexes, Layout, Values, in_order, layouts_of
from spark_sink.rows.text_columns import Pieces, TextColumns, joined_text

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)
# Earlier dates are numbers in extended JSON.
_FIRST_ISO_YEAR = 1970
# The milliseconds since 1970 before which dates have four digits of a year.
_LAST_ISO_DATE = 253_402_300_800_000
# Documents deeper than this are written one by one.
_DEEPEST = 20


def relaxed_json(field: Slice) -> str:
    """Return a field as relaxed extended JSON. Raises UNREADABLE."""
    return _relaxed_text(_decoded(field))


def canonical_json(field: Slice) -> str:
    """Return a field as canonical extended JSON. Raises UNREADABLE."""
    return json_util.dumps(_decoded(field), json_options=json_util.CANONICAL_JSON_OPTIONS)


def _relaxed_text(plain: Any) -> str:
    try:
        return _encode(plain)
    except ValueError:  # an infinity or a NaN, which JSON cannot represent
        return json_util.dumps(plain, json_options=json_util.RELAXED_JSON_OPTIONS)


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
    return json_util.default(value, json_util.RELAXED_JSON_OPTIONS)


def _has_infinity(value: Any) -> bool:
    if isinstance(value, float):
        return value - value != 0.0
    if isinstance(value, dict):
        return any(map(_has_infinity, value.values()))
    return isinstance(value, list) and any(map(_has_infinity, value))


try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]
else:
    # Types that JSON lacks, and code, which is a subclass of str.
    _PASSED_ON = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def _encode(value: Any) -> str:
    """Return a value as JSON without spaces. Raises ValueError for infinities and NaN."""
    if orjson is not None:
        encoded = orjson.dumps(value, default=_relaxed, option=_PASSED_ON)
        # orjson writes null for an infinity or a NaN.
        if b"null" not in encoded or not _has_infinity(value):
            return encoded.decode()
    elif not _has_infinity(value):
        return json_util.dumps(
            value,
            json_options=json_util.RELAXED_JSON_OPTIONS,
            ensure_ascii=False,
            separators=(",", ":"),
        )
    raise ValueError("a number that JSON cannot represent")


class _UncommonError(Exception):
    """A value cannot be written by column: its document is written alone."""


class JsonColumns(TextColumns):
    """Writes the same texts as `relaxed_json` or `canonical_json`, of many documents together."""

    def __init__(self, *, canonical: bool = False) -> None:
        self._canonical = canonical
        self.separator, self.colon = (", ", ": ") if canonical else (",", ":")
        self.ascii_only = canonical
        self._depth = 0

    def texts(self, documents: Values) -> pa.Array:
        """Return the texts of documents. Raises UNREADABLE."""
        layouts, left = layouts_of(documents)
        parts: list[tuple[Indexes, pa.Array]] = []
        for layout in layouts:
            self._depth = 0
            try:
                pieces = self._of_layout(layout)
            except _UncommonError:
                left = np.sort(np.concatenate([left, layout.rows]))
            else:
                parts.append((layout.rows, joined_text(pieces, len(layout.rows))))
        if len(left) or not parts:
            parts.append((left, self._each(documents.chosen(left))))
        return in_order(parts)

    def field(self, layout: Layout, name: bytes) -> pa.Array:
        """Return the texts of a field of documents; "null" if they lack it. Raises UNREADABLE."""
        size = len(layout.rows)
        if name not in layout.fields:
            return joined_text(["null"], size)
        self._depth = 1
        try:
            return joined_text(self.values(layout.fields[name]), size)
        except _UncommonError:
            return self._each(layout.fields[name])

    def _each(self, values: Values) -> pa.Array:
        texts: Iterable[str]
        if values.kind == DOCUMENT and not self._canonical:
            texts = map(_relaxed_text, decoded_documents(values.to_list(), _CODEC))
        else:
            texts = map(canonical_json if self._canonical else relaxed_json, values.slices())
        return pa.array(texts, pa.string())

    def name(self, name: bytes) -> str:
        """Return the text of a field's name, with what separates it from the value."""
        try:
            name.decode()
        except ValueError:
            raise _UncommonError from None
        return self.text(*string_of(name)) + self.colon

    def text(self, kind: int, value: bytes) -> str:
        """Return the text of one value."""
        try:
            field = Slice(kind, value)
            return canonical_json(field) if self._canonical else _encode(_decoded(field))
        except UNREADABLE:
            raise _UncommonError from None

    def _require(self, fits: Any) -> None:
        if not np.all(fits):
            raise _UncommonError

    def _require_end(self, values: Values) -> None:
        self._require(values.at(values.stops - 1, "u1") == 0)

    def _of_layout(self, layout: Layout) -> Pieces:
        self._require(self._depth < _DEEPEST)
        # A reference has a form of its own.
        self._require(not self._depth or b"$ref" not in layout.fields)
        self._require_end(layout.documents)
        self._depth += 1
        found = super()._of_layout(layout)
        self._depth -= 1
        return found

    def _arrays(self, arrays: Values) -> Pieces:
        self._require_end(arrays)
        self._require(self._depth < _DEEPEST)
        self._depth += 1
        found = super()._arrays(arrays)
        self._depth -= 1
        return found

    def _strings(self, values: Values) -> Pieces:
        self._require(values.stops - values.starts > 4)
        self._require_end(values)
        pieces: list[Any] = super()._strings(values)
        if not self._canonical:
            try:
                pieces[1].validate(full=True)
            except pa.ArrowInvalid:
                raise _UncommonError from None
        return pieces

    def _bools(self, values: Values) -> Pieces:
        self._require(values.at(values.starts, "u1") <= 1)
        return super()._bools(values)

    def _numbers(self, values: Values) -> Pieces:
        [numbers] = super()._numbers(values)
        if not self._canonical:
            return [numbers]
        return self.wrapped("$numberInt" if values.kind == INT32 else "$numberLong", numbers)

    def _doubles(self, values: Values) -> Pieces:
        if self._canonical:
            return self._singly(values)
        doubles = values.at(values.starts, "<f8")
        self._require(np.isfinite(doubles))
        return [pa.array(_encode(doubles.tolist())[1:-1].split(","), pa.string())]

    def _dates(self, values: Values) -> Pieces:
        milliseconds = values.integers("<i8")
        is_usual = (milliseconds >= 0) & (milliseconds < _LAST_ISO_DATE)
        if self._canonical or not is_usual.all():
            return self._singly(values)
        days, times = np.divmod(milliseconds, 86_400_000)
        dates = pa.array(days.astype(np.int32)).view(pa.date32()).cast(pa.string())
        clock = pa.array(times.astype(np.int32)).view(pa.time32("ms")).cast(pa.string())
        whole = milliseconds % 1000 == 0
        if whole.any():
            clock = pc.if_else(pa.array(whole), pc.utf8_slice_codeunits(clock, 0, 8), clock)
        time = pc.binary_join_element_wise(dates, clock, "T")
        return ['{"$date":"', time, 'Z"}']
