"""The compressors of OP_COMPRESSED: zlib, snappy and zstd.

Source: docs/protocol.md#wire-protocol.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from mmap import mmap

import cramjam

from shard_client.errors import ProtocolError

IDS = {"noop": 0, "snappy": 1, "zlib": 2, "zstd": 3}
"""The numbers of the compressors in OP_COMPRESSED."""

_NOOP, _SNAPPY, _ZLIB, _ZSTD = IDS.values()

AVAILABLE: tuple[str, ...] = ("snappy", "zstd", "zlib")
"""Names of the available compressors, in the servers' order of preference."""

NEVER_COMPRESSED = frozenset(
    {
        "hello", "isMaster", "ismaster", "saslStart", "saslContinue", "getnonce", "authenticate",
        "createUser", "updateUser", "copydb", "copydbgetnonce", "copydbsaslstart",
    }
)  # fmt: skip
"""Commands whose messages are never compressed: handshakes and commands that carry secrets."""

_MAPPED = 1024 * 1024
_ZLIB_LEVEL = 6
_ZSTD_LEVEL = 3


def negotiate(offered: Iterable[object], allowed: Sequence[str] = AVAILABLE) -> list[str]:
    """Return the ``offered`` compressors that are ``allowed`` and available, in the offered order.

    A server returns this list as ``compression`` in its hello reply; the first one is used.
    """
    usable = {name for name in allowed if name in AVAILABLE}
    return [name for name in offered if isinstance(name, str) and name in usable]


def compress(compressor: int, data: bytes) -> bytes:
    """Compress ``data``; ``compressor`` is the number of one of AVAILABLE, or 0 (noop)."""
    if compressor == _ZLIB:
        return zlib.compress(data, _ZLIB_LEVEL)
    if compressor == _NOOP:
        return data
    if compressor == _SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if compressor == _ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise ValueError(f"no compressor {compressor}")


def decompress(compressor: int, data: memoryview, size: int) -> bytes | memoryview:
    """Decompress ``data`` to exactly ``size`` bytes; memory use is bounded by ``size``.

    Raises ProtocolError if the result has another size, or if the compressor is unknown.
    """
    result: bytes | memoryview
    if compressor == _ZLIB:
        result = _inflate(data, size)
    elif compressor == _NOOP:
        result = data
    elif compressor == _SNAPPY:
        result = _decompress_into(cramjam.snappy.decompress_raw_into, data, size)
    elif compressor == _ZSTD:
        result = _decompress_into(cramjam.zstd.decompress_into, data, size)
    else:
        raise ProtocolError(f"unknown compressor {compressor}")
    if len(result) != size:
        raise ProtocolError(f"a compressed message held {len(result)} bytes instead of {size}")
    return result


def _inflate(data: memoryview, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One byte more than declared, so that an oversized message is detected.
        result = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise ProtocolError(f"a message is not valid zlib: {error}") from error
    if not inflater.eof:
        raise ProtocolError("a message is not valid zlib: it does not end where it should")
    return result


def _decompress_into(
    decompress_into: Callable[[memoryview, memoryview], int], data: memoryview, size: int
) -> memoryview:
    # Mapped memory is not touched before the decompressor, which runs without the lock, does it.
    output = memoryview(mmap(-1, size) if size > _MAPPED else bytearray(size))
    try:
        written = decompress_into(data, output)
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"a message cannot be decompressed: {error}") from error
    return output[:written]
