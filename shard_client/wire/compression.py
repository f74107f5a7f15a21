"""The compressors of OP_COMPRESSED: zlib, snappy and zstd.

Source: docs/protocol.md#wire-protocol.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from mmap import mmap
from typing import Final, NamedTuple

import cramjam

from shard_client.errors import ProtocolError

IDS = {"noop": 0, "snappy": 1, "zlib": 2, "zstd": 3}
"""The numbers of the compressors in OP_COMPRESSED."""


class _Codec(NamedTuple):
    """``decompress_into`` fills a buffer and returns the number of bytes that it has written."""

    compress: Callable[[bytes], bytes | cramjam.Buffer]
    decompress_into: Callable[[memoryview, memoryview], int]


_CODECS: Final = {
    IDS["snappy"]: _Codec(cramjam.snappy.compress_raw, cramjam.snappy.decompress_raw_into),
    IDS["zlib"]: _Codec(partial(zlib.compress, level=6), cramjam.zlib.decompress_into),
    IDS["zstd"]: _Codec(partial(cramjam.zstd.compress, level=3), cramjam.zstd.decompress_into),
}

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


def negotiate(offered: Iterable[object], allowed: Sequence[str] = AVAILABLE) -> list[str]:
    """Return the ``offered`` compressors that are ``allowed`` and available, in the offered order.

    A server returns this list as ``compression`` in its hello reply; the first one is used.
    """
    usable = {name for name in allowed if name in AVAILABLE}
    return [name for name in offered if isinstance(name, str) and name in usable]


def compress(compressor: int, data: bytes) -> bytes:
    """Compress ``data``; ``compressor`` is the number of one of AVAILABLE, or 0 (noop)."""
    return bytes(_CODECS[compressor].compress(data)) if compressor else data


def decompress(compressor: int, data: memoryview, size: int) -> memoryview:
    """Decompress ``data`` to exactly ``size`` bytes; memory use is bounded by ``size``.

    Raises ProtocolError if the result has another size, or if the compressor is unknown.
    """
    codec = _CODECS.get(compressor)
    if codec is not None:
        # Mapped memory is not touched before the decompressor, which runs without the lock, does.
        output = memoryview(mmap(-1, size) if size > _MAPPED else bytearray(size))
        try:
            result = output[: codec.decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            raise ProtocolError(f"a message cannot be decompressed: {error}") from error
    elif compressor == IDS["noop"]:
        result = data
    else:
        raise ProtocolError(f"unknown compressor {compressor}")
    if len(result) != size:
        raise ProtocolError(f"a compressed message held {len(result)} bytes instead of {size}")
    return result
