"""A cluster of scripted members for the tests of cursors and streams."""

from collections.abc import AsyncIterator

import pytest

from tests.doubles.scripted_cluster import ScriptedCluster, start_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    made = await start_cluster()
    try:
        yield made
    finally:
        await made.close()
