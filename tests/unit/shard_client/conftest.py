"""A scripted member, with an entry in its oplog."""

from collections.abc import AsyncIterator

import pytest

from tests.doubles.scripted_member import ScriptedMember


@pytest.fixture
async def member() -> AsyncIterator[ScriptedMember]:
    member = await ScriptedMember("rs").start()
    member.noop(99)
    yield member
    await member.stop()
