"""Reading along paths: what a reader remembers of earlier documents changes nothing."""

import struct
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from router.filters.fields import Path
from router.filters.paths import PathReader
from tests.filters.chance import document, text

Shape = list[tuple[str, "str | Shape"]]
"""Names of fields with the kinds of their values."""


def scoped(code: bytes, *scope: bytes) -> bytes:
    """Return code with scope."""
    parts = text(code) + document(*scope)
    return struct.pack("<i", len(parts) + 4) + parts


KINDS: dict[str, Sequence[bytes]] = {
    "double": (b"\x01", b"\0" * 8, b"\1" * 8),
    "string": (b"\x02", text(b""), text(b"a"), text(b"dd"), text(b"\xff"), text(b"x" * 300)),
    "document": (b"\x03", document(), document(b"\x10x\0\1\0\0\0"), document(b"\x0ay\0")),
    "array": (b"\x04", document(), document(b"\x0a0\0"), document(b"\x0a7\0", b"\x0ax\0")),
    "array of documents": (
        b"\x04",
        document(b"\x030\0" + document(b"\x10x\0\1\0\0\0")),
        document(b"\x030\0" + document(), b"\x021\0" + text(b"a")),
    ),
    "binary": (b"\x05", b"\0\0\0\0\0", b"\1\0\0\0\0a", b"\2\0\0\0\x80ab"),
    "undefined": (b"\x06", b""),
    "object id": (b"\x07", b"\0" * 12, b"\1" * 12),
    "boolean": (b"\x08", b"\0", b"\1"),
    "date": (b"\x09", b"\0" * 8, b"\xff" * 8),
    "null": (b"\x0a", b""),
    "expression": (b"\x0b", b"\0\0", b"^a\0i\0"),
    "pointer": (b"\x0c", text(b"c") + b"\1" * 12, text(b"") + b"\0" * 12),
    "code": (b"\x0d", text(b"f"), text(b"g()")),
    "symbol": (b"\x0e", text(b""), text(b"a")),
    "code with scope": (b"\x0f", scoped(b"f"), scoped(b"", b"\x0ax\0")),
    "int": (b"\x10", b"\0" * 4, b"\1" * 4),
    "timestamp": (b"\x11", b"\0" * 8),
    "long": (b"\x12", b"\0" * 8),
    "decimal": (b"\x13", b"\0" * 16, b"\xff" * 16),
    "min key": (b"\xff", b""),
    "max key": (b"\x7f", b""),
}
"""For each type of BSON its byte, and values."""

FIELDS = ("a", "b", "c")


def a_shape(random: Random, depth: int = 0) -> Shape:
    """Return fields with a type each, or with fields of their own; a name may occur twice."""
    names = random.choices(FIELDS, k=random.randrange(1, 5))
    return [
        (
            name,
            a_shape(random, depth + 1)
            if depth < 2 and random.random() < 0.4
            else random.choice(list(KINDS)),
        )
        for name in names
    ]


def a_document(random: Random, shape: Shape) -> bytes:
    """Return a document of that shape with values by chance."""
    elements = []
    for name, kind in shape:
        if isinstance(kind, list):
            elements.append(b"\x03" + name.encode() + b"\0" + a_document(random, kind))
        else:
            tag, *values = KINDS[kind]
            elements.append(tag + name.encode() + b"\0" + random.choice(values))
    return document(*elements)


def paths_into(shape: Shape, above: Path = ()) -> Iterator[Path]:
    """Yield the paths of a shape, and paths to names that it lacks and below its values."""
    for name in {each for each, _ in shape} | {"d"}:
        yield (*above, name.encode())
        yield (*above, name.encode(), b"x")
    for name, kind in shape:
        if isinstance(kind, list):
            yield from paths_into(kind, (*above, name.encode()))


@pytest.mark.parametrize("seed", range(300))
def test_documents_built_alike_are_read_as_a_walk_reads_them(seed: int) -> None:
    random = Random(seed)
    shapes = [a_shape(random) for _ in range(random.choice((1, 2, 6)))]
    known = sorted({path for shape in shapes for path in paths_into(shape)})
    reader = PathReader(random.sample(known, min(len(known), random.choice((1, 1, 1, 2, 4)))))
    for _ in range(40):
        event = a_document(random, random.choice(shapes))
        found = reader.walk(event)
        assert reader.read(event) == found
        if len(reader.paths) == 1 and (value := reader.value(event)) is not None:
            ((kind, start, end),) = found[0]
            assert value == (kind, event[start:end])
