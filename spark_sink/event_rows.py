"""Change events as rows: the source's fixed schema, and Arrow batches made from raw events.

JSON columns hold MongoDB's extended JSON; `event` holds the event's own bytes, from which nothing
is lost. Fields of events: docs/protocol.md, section 5.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import bson
import pyarrow as pa
from bson import json_util
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.datetime_ms import DatetimeMS
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

SCHEMA = StructType(
    [
        StructField("token", StringType(), nullable=False),
        StructField("operationType", StringType()),
        StructField("clusterTime", TimestampType()),
        StructField("clusterTimeOrdinal", LongType()),
        StructField("wallTime", TimestampType()),
        StructField("namespace", StringType()),
        StructField("database", StringType()),
        StructField("collection", StringType()),
        StructField("documentKey", StringType()),
        StructField("fullDocument", StringType()),
        StructField("fullDocumentBeforeChange", StringType()),
        StructField("updateDescription", StringType()),
        StructField("event", BinaryType(), nullable=False),
    ]
)
"""What every row has. Rows sort by `token` as the stream is ordered; clusterTime and
clusterTimeOrdinal are the event's cluster time, the ordinal counting within one second."""

# An Arrow batch ends with the first of these.
ROWS_PER_BATCH = 2_000
BYTES_PER_BATCH = 8 * 1024 * 1024

_ARROW_SCHEMA = to_arrow_schema(SCHEMA, timezone="UTC")


class _CodeValue:
    """JavaScript code, which must not pass for the string that `Code` is a subclass of."""

    def __init__(self, code: Code) -> None:
        self.code = code


class _CodeDecoder(TypeDecoder):
    bson_type = Code

    def transform_bson(self, value: Any) -> _CodeValue:
        return _CodeValue(value)


_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
    type_registry=TypeRegistry([_CodeDecoder()]),
)

ToJson = Callable[[Any], str | None]


def arrow_batches(events: Iterable[RawBSONDocument], to_json: ToJson) -> Iterator[pa.RecordBatch]:
    """The events as Arrow batches of SCHEMA, each of bounded size, in the same order.

    to_json: `relaxed_json` or `canonical_json`.
    """
    rows: list[tuple[Any, ...]] = []
    size = 0
    for event in events:
        rows.append(_row(event, to_json))
        size += len(event.raw)
        if len(rows) >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def relaxed_json(value: Any) -> str | None:
    """A field of a raw event as relaxed extended JSON; None for a missing field."""
    if value is None:
        return None
    plain = _decoded(value)
    try:
        return _ENCODER.encode(plain)
    except ValueError:  # an infinity or a NaN, which JSON has no word for
        return json_util.dumps(_with_code(plain), json_options=json_util.RELAXED_JSON_OPTIONS)


def canonical_json(value: Any) -> str | None:
    """A field of a raw event as canonical extended JSON; None for a missing field."""
    if value is None:
        return None
    plain = _with_code(_decoded(value))
    return json_util.dumps(plain, json_options=json_util.CANONICAL_JSON_OPTIONS)


def _row(event: RawBSONDocument, to_json: ToJson) -> tuple[Any, ...]:
    get = dict(event.items()).get
    cluster_time = get("clusterTime")
    if not isinstance(cluster_time, Timestamp):  # projected away
        cluster_time = None
    database, collection = _namespace(get("ns"))
    return (
        get("_id", {})["_data"],
        _text(get("operationType")),
        None if cluster_time is None else cluster_time.time * 1_000_000,
        None if cluster_time is None else cluster_time.inc,
        _microseconds(get("wallTime")),
        ".".join(filter(None, (database, collection))) or None,
        database,
        collection,
        to_json(get("documentKey")),
        to_json(get("fullDocument")),
        to_json(get("fullDocumentBeforeChange")),
        to_json(get("updateDescription")),
        event.raw,
    )


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(column, type=field.type)
        for column, field in zip(zip(*rows, strict=True), _ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _namespace(ns: Any) -> tuple[str | None, str | None]:
    if not isinstance(ns, Mapping):
        return None, None
    return _text(ns.get("db")), _text(ns.get("coll"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _microseconds(value: Any) -> int | None:
    return int(value) * 1000 if isinstance(value, DatetimeMS) else None


def _decoded(value: Any) -> Any:
    """Plain Python values from a raw subdocument, or from any other value of a field."""
    if isinstance(value, RawBSONDocument):
        return bson.decode(value.raw, _CODEC)
    return bson.decode(bson.encode({"v": value}), _CODEC)["v"]


def _relaxed(value: Any) -> Any:
    """What the C encoder does not know: MongoDB's own types, the commonest of them first."""
    if isinstance(value, ObjectId):
        return {"$oid": str(value)}
    if isinstance(value, datetime) and value.year >= _FIRST_READABLE_YEAR:
        text = value.isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        return {"$date": text.removesuffix("+00:00") + "Z"}
    if isinstance(value, _CodeValue):
        value = value.code
    return json_util.default(value, json_util.RELAXED_JSON_OPTIONS)


# Earlier dates are numbers in extended JSON.
_FIRST_READABLE_YEAR = 1970

_ENCODER = json.JSONEncoder(
    default=_relaxed, allow_nan=False, ensure_ascii=False, separators=(",", ":")
)


def _with_code(value: Any) -> Any:
    """The value with real Code objects again, for json_util."""
    if isinstance(value, dict):
        return {key: _with_code(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_code(item) for item in value]
    return value.code if isinstance(value, _CodeValue) else value
