"""Assembling the process from its parts."""

import asyncio

import pytest

from router import service
from router.config.settings import load_settings


async def test_the_config_server_is_required() -> None:
    with pytest.raises(ValueError, match=r"sharding\.configDB is not set"):
        await service.serve(load_settings({}), [], asyncio.Event())
