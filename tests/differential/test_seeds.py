"""Some seeds of the differential test; a failure lists all differences."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.differential.seeds import Clients, Outcome, Servers, run_all
from tests.differential.servers import running

SEEDS = range(1, 13)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running(3) as servers:
        yield servers


def test_the_router_returns_what_mongos_returns(servers: Servers) -> None:
    outcomes = asyncio.run(_run(servers))
    found = [f"seed {each.seed}: {text}" for each in outcomes for text in each.differences]
    assert not found, "\n".join(found)
    assert sum(outcome.events for outcome in outcomes) > 1000


async def _run(servers: Servers) -> list[Outcome]:
    clients = Clients(servers)
    try:
        return await run_all(servers, clients, SEEDS, jobs=4, done=lambda _: None)
    finally:
        await clients.close()
