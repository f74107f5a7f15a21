"""BSON values as text in mongos's messages."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

LONGEST: Final = 16 * 1024
"""Most characters of a value in a message."""


def shortened(text: str, most: int = LONGEST) -> str:
    """Return the text, cut after ``most`` characters."""
    return text if len(text) <= most else text[:most] + "..."


def render(value: Any, scalar: Callable[[Any], str] | None = None, *, space: str = "") -> str:
    """Return a value as text in the form of aggregation messages: ``{_data: "82", n: 5}``.

    What goes beyond LONGEST characters is neither rendered nor returned. Other messages print some
    values by ``scalar``, and ``space`` inside of brackets.
    """
    parts, size = list[str](), 0
    for part in _rendered(value, scalar or plain, space):
        parts.append(part)
        size += len(part)
        if size > LONGEST:
            break
    return shortened("".join(parts))


def _rendered(value: Any, scalar: Callable[[Any], str], space: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        opening, closing = "{", "}"
        items = ((f"{name[:LONGEST]}: ", item) for name, item in value.items())
    elif isinstance(value, (list, tuple)):
        opening, closing = "[", "]"
        items = (("", item) for item in value)
    else:
        yield scalar(value)
        return
    before = opening + space
    for name, item in items:
        yield before + name
        yield from _rendered(item, scalar, space)
        before = ", "
    yield space + closing if value else opening + closing


def plain(value: Any) -> str:
    """Return a value that is no document and no array, as aggregation messages print it."""
    if isinstance(value, str):
        return f'"{shortened(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, bytes):
        shown = shortened(value[:LONGEST].hex().upper())
        return f'BinData({getattr(value, "subtype", 0)}, "{shown}")'
    if isinstance(value, Timestamp):
        return f"Timestamp({value.time}, {value.inc})"
    return str(value)
