import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_client.errors import ProtocolError
from shard_client.wire.compression import IDS, compress, decompress


@pytest.mark.parametrize("compressor", IDS.values())
@pytest.mark.parametrize("off_by", [-1, 1, -500, 500])
def test_a_size_other_than_declared_is_refused(compressor, off_by):
    data = b"abc" * 1000
    with pytest.raises(ProtocolError):
        decompress(compressor, compress(compressor, data), len(data) + off_by)


@pytest.mark.parametrize("compressor", IDS.values())
@given(data=st.binary(max_size=200), size=st.integers(0, 300))
def test_random_bytes_raise_only_protocol_errors(compressor, data, size):
    with contextlib.suppress(ProtocolError):
        assert len(decompress(compressor, data, size)) == size


def test_a_bomb_is_not_inflated_beyond_its_declared_size():
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(ProtocolError):
        decompress(IDS["zlib"], bomb, 1000)
