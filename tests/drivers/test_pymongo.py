"""pymongo's own change stream tests pass through the router as they do through a mongos."""

from concurrent.futures import ThreadPoolExecutor

import pymongo
import pytest

from tests.drivers.download_cache import DownloadError
from tests.drivers.pymongo_tests import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    pymongo_tests,
    through_router,
)

# Passed and skipped by file and token version. A mongos of 6.0 over two shards with no-ops each
# second gives 103 and 52 for the first; the others follow from what their versions leave out.
COUNTS = {
    "4.20.0": {
        (SYNCHRONOUS, 1): (103, 52),
        (SYNCHRONOUS, 2): (106, 49),
        (ASYNCHRONOUS, 1): (94, 61),
        (ASYNCHRONOUS, 2): (97, 58),
    }
}
# Of the specification's tests for replica sets, two are for servers older than 6.0.
WIDENED_COUNT = (22, 2)
ROUNDS = ((SYNCHRONOUS, 1), (ASYNCHRONOUS, 2))


@pytest.mark.timeout(600)
def test_pymongo_s_own_tests() -> None:
    try:
        folder = pymongo_tests()
    except DownloadError as error:
        pytest.skip(f"pymongo's tests cannot be had: {error}")
    with ThreadPoolExecutor(len(ROUNDS)) as pool:
        outcomes = list(pool.map(lambda each: through_router(folder, *each), ROUNDS))
    for each, (outcome, of_mongos) in zip(ROUNDS, outcomes, strict=True):
        assert not outcome.failed, outcome.output
        if of_mongos is not None:
            assert outcome.tests == of_mongos.tests
            continue
        count, widened = outcome.count(), outcome.count_widened()
        assert (widened["passed"], widened["skipped"]) == WIDENED_COUNT
        if pymongo.version in COUNTS:
            assert (count["passed"], count["skipped"]) == COUNTS[pymongo.version][each]
        else:
            assert count["passed"] > 90
