"""MongoDB's extended JSON of BSON slices, decoded in C and encoded by orjson where installed.

orjson is optional, so that an executor needs only pymongo and pyarrow; without it the standard
library's encoder gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import bson
from bson import json_util
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.dbref import DBRef
from bson.objectid import ObjectId

from shard_client.bson.values import DOCUMENT
from spark_sink.events.slices import Slice, decoded_documents

ToJson = Callable[[Slice | None], str | None]
"""Turns a field into text; a missing field into None."""


class Wrapped:
    """Wraps a value of a subclass of `int` or `str`: an encoder would write a number or a text.

    Encoders do not know this class, so they call their `default` function with it.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class CodeDecoder(TypeDecoder):
    """Decodes JavaScript code as `Wrapped`: `Code` is a subclass of `str`."""

    bson_type = Code

    def transform_bson(self, value: Any) -> Wrapped:
        """Return the code, wrapped."""
        return Wrapped(value)


_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
    type_registry=TypeRegistry([CodeDecoder()]),
)
# Earlier dates are numbers in extended JSON.
_FIRST_ISO_YEAR = 1970


def relaxed_json(field: Slice | None) -> str | None:
    """Return a field as relaxed extended JSON; None for a missing field."""
    if field is None:
        return None
    return _relaxed_text(_decoded(field))


def relaxed_documents(documents: Sequence[bytes]) -> list[str]:
    """Return documents as relaxed extended JSON, as `relaxed_json` makes it of each."""
    return list(map(_relaxed_text, decoded_documents(documents, _CODEC)))


def relaxed_part(field: Slice) -> str:
    """Return a field as `relaxed_json` writes it within a document that JSON can represent.

    Raises ValueError for an infinity and NaN, which change how a whole document is written.
    """
    return _encode(_decoded(field))


def relaxed_parts(numbers: list[float]) -> list[str]:
    """Return numbers as `relaxed_part` writes doubles."""
    return _encode(numbers)[1:-1].split(",")


def canonical_json(field: Slice | None) -> str | None:
    """Return a field as canonical extended JSON; None for a missing field."""
    if field is None:
        return None
    plain = _with_code(_decoded(field))
    return json_util.dumps(plain, json_options=json_util.CANONICAL_JSON_OPTIONS)


def _relaxed_text(plain: Any) -> str:
    try:
        return _encode(plain)
    except ValueError:  # an infinity or a NaN, which JSON cannot represent
        return json_util.dumps(_with_code(plain), json_options=json_util.RELAXED_JSON_OPTIONS)


def _decoded(field: Slice) -> Any:
    if field.kind == DOCUMENT:
        return bson.decode(field.value, _CODEC)
    return bson.decode(field.wrapped(), _CODEC)["v"]


def _relaxed(value: Any) -> Any:
    """Return what the encoders do not know: MongoDB's own types, the most common first."""
    if isinstance(value, ObjectId):
        return {"$oid": str(value)}
    if isinstance(value, datetime) and value.year >= _FIRST_ISO_YEAR:
        text = value.isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        return {"$date": text.removesuffix("+00:00") + "Z"}
    if isinstance(value, Wrapped):
        value = value.value
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


def text_encoder(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Return a function that writes a value as JSON without spaces, by orjson where installed.

    `default` converts what JSON does not know. The function raises ValueError for infinities and
    NaN.
    """
    if orjson is None:
        standard = json.JSONEncoder(
            default=default, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return standard.encode

    def encode(value: Any) -> str:
        encoded = orjson.dumps(value, default=default, option=orjson.OPT_PASSTHROUGH_DATETIME)
        # orjson writes null for an infinity or a NaN.
        if b"null" in encoded and _has_infinity(value):
            raise ValueError("a number that JSON cannot represent")
        return encoded.decode()

    return encode


_encode = text_encoder(_relaxed)


def _with_code(value: Any) -> Any:
    """Return the value with real Code objects again, for json_util."""
    if isinstance(value, dict):
        return {key: _with_code(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_code(item) for item in value]
    if isinstance(value, DBRef):
        return _with_code(value.as_doc())
    if not isinstance(value, Wrapped):
        return value
    code = value.value
    if isinstance(code, Code) and code.scope is not None:
        return Code(str(code), _with_code(code.scope))
    return code
