"""pymongo's own change stream tests pass on the router as they do on a mongos."""

from pathlib import Path

import pymongo
import pytest

from tests.drivers.download_cache import DownloadError
from tests.drivers.pymongo_tests import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    TRANSACTIONS,
    before_replica_set,
    pymongo_tests,
    through_router,
)
from tests.harness.clusters import real_servers_named

# Passed and skipped by file and version. A mongos of 6.0 over two shards with no-ops each
# second gives 102 and 52 for the first; the others follow from what their versions leave out.
# Real servers are those of 6.0 here.
COUNTS = {
    "4.20.0": {
        (SYNCHRONOUS, "6.0"): (102, 52),
        (SYNCHRONOUS, "8.2"): (105, 49),
        (ASYNCHRONOUS, "6.0"): (93, 61),
        (ASYNCHRONOUS, "8.2"): (96, 58),
    }
}
# Of the specification's tests for replica sets, two are for servers older than 6.0.
WIDENED_COUNT = (22, 2)
ROUNDS = ((SYNCHRONOUS, "6.0"), (ASYNCHRONOUS, "8.2"))


def downloaded() -> Path:
    try:
        return pymongo_tests()
    except DownloadError as error:
        pytest.skip(f"pymongo's tests are not available: {error}")


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("file", "server_version"), ROUNDS)
def test_pymongo_s_own_tests_pass(
    file: str, server_version: str, pytestconfig: pytest.Config
) -> None:
    """``make driver-tests`` also compares with a mongos, which takes seven minutes."""
    mongos_too = pytestconfig.getoption("--mongos-too")
    if real_servers_named() and file == ASYNCHRONOUS and not mongos_too:
        pytest.skip("sends real servers what the synchronous tests send them")
    outcome, of_mongos = through_router(downloaded(), file, server_version, mongos_too=mongos_too)
    assert not outcome.failed, outcome.output
    assert of_mongos is None or of_mongos.tests == outcome.tests
    count, widened = outcome.count(), outcome.count_widened()
    assert (widened["passed"], widened["skipped"]) == WIDENED_COUNT
    version = "6.0" if real_servers_named() else server_version
    if pymongo.version in COUNTS:
        assert (count["passed"], count["skipped"]) == COUNTS[pymongo.version][file, version]
    else:
        assert count["passed"] > 90


@pytest.mark.timeout(1000)
def test_pymongo_s_own_tests_pass_in_front_of_a_replica_set() -> None:
    outcome = before_replica_set(downloaded(), SYNCHRONOUS)
    assert not outcome.failed, outcome.output
    assert outcome.count()["passed"] > 90
    assert outcome.count_widened()["passed"] == WIDENED_COUNT[0]
    # These two need a second mongos, which does not know the transaction.
    needing_two = "retry_fails_on_new_mongos or within_a_transaction_and_commit"
    outcome = before_replica_set(downloaded(), TRANSACTIONS, needing_two)
    assert not outcome.failed, outcome.output
    assert outcome.count()["passed"] > 240
