"""Decode and encode whole BSON documents as dicts.

``bson_slices`` reads fields of raw documents without decoding them.
"""

from collections.abc import Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

from shard_client.errors import ProtocolError

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Decoding options: plain ordered dicts, the full date range of BSON."""

LENIENT: CodecOptions[dict[str, Any]] = CODEC.with_options(unicode_decode_error_handler="replace")
"""Decoding options for a server's replies and events: their text, also what an error message
quotes, may not be UTF-8. U+FFFD replaces such bytes."""


def decode(document: bytes, options: CodecOptions[dict[str, Any]] = CODEC) -> dict[str, Any]:
    """Decode one BSON document; raises ProtocolError if it is not valid."""
    try:
        return bson.decode(document, options)
    # The decoder raises more than InvalidBSON: ValueError for dates and regexes, TypeError, …
    except Exception as error:
        raise ProtocolError(f"not valid BSON: {error}") from error


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode one document with its fields in order; raises bson.errors.InvalidDocument."""
    return bson.encode(document, codec_options=CODEC)
