"""Resume tokens and events for tests, built byte by byte (docs/protocol.md#resume-tokens)."""

from typing import Any

import bson

UUID_ZERO = "5A1004" + "0" * 32


def data_of(
    time: int,
    number: int,
    *,
    inc: int = 1,
    version: int = 1,
    operation: str = "insert",
    txn_op_index: str = "29",
    invalidate: bool = False,
) -> str:
    """Return the ``_data`` of an event on the document ``{_id: number}`` (0 < number < 64)."""
    key = f"461E5F6964002B{number << 1:02X}00" if number else ""
    if version == 2:
        name = operation.encode().hex().upper()
        inside = f"46{'646F63756D656E744B6579'}00{key}" if key else ""
        key = f"463C6F7065726174696F6E54797065003C{name}00{inside}00"
    middle = "6F" if invalidate else "6E"
    return (
        f"82{time:08X}{inc:08X}2B{version << 1:02X}2C0100{txn_op_index}{middle}{UUID_ZERO}{key}04"
    )


def event(data: str, **fields: Any) -> tuple[bytes, bytes]:
    """Return an event with its sort key."""
    body = {"_id": {"_data": data}, "operationType": "insert", **fields}
    return data.encode(), bson.encode(body)
