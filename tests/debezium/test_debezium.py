"""A seed of Debezium's messages beside ours; `python -m tests.debezium` runs more."""

import pytest

from tests.debezium.engine import reason_to_skip
from tests.debezium.seeds import run_seed
from tests.harness.clusters import start_real_cluster
from tests.harness.routers import start_router

_LEAST_MESSAGES = 150

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("debezium")]


def test_messages_are_those_of_debezium() -> None:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with (
        start_real_cluster(2, noop_interval=1) as cluster,
        start_router(cluster.configdb, f"mongodb://{cluster.mongos}") as router,
    ):
        outcome = run_seed(cluster, router.uri, 8, 150)
    assert not outcome.differences, "\n".join(outcome.differences)
    assert outcome.messages > _LEAST_MESSAGES
