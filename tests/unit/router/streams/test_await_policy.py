"""How often a progress cursor may query its member."""

from router.stream_settings import StreamSettings
from router.streams.await_policy import ProbeBudget

LIMITS = StreamSettings(probe_share=0.05, probe_burst=0.25)


def looks(takes: float, every: float, seconds: float) -> int:
    """Return how many probes of ``takes`` seconds the budget allows if tried ``every`` seconds."""
    budget, count, now = ProbeBudget(LIMITS, 1000.0), 0, 1000.0
    while now < 1000.0 + seconds:
        if budget.affords(now):
            budget.spend(now, takes)
            count += 1
        now += every
    return count


def test_a_member_that_has_nothing_to_scan_may_be_looked_at_for_each_event():
    assert looks(0.001, every=0.025, seconds=60) == 2400


def test_a_member_that_has_much_to_scan_is_looked_at_for_a_part_of_the_time():
    seconds = 100
    busy = looks(0.08, every=0.02, seconds=seconds) * 0.08
    assert seconds * 0.045 < busy < seconds * 0.05 + 0.25 + 0.08


def test_what_was_not_used_is_not_kept_for_ever():
    budget = ProbeBudget(LIMITS, 0.0)
    budget.spend(1e6, 0.25)
    assert not budget.affords(1e6)
    assert budget.affords(1e6 + 0.1)
