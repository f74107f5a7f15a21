"""Where the router differs from mongos on purpose (docs/protocol.md, section 11)."""

from tests.differential.plans import Plan
from tests.differential.reading import Reading

_NOT_FOUND = "cannot resume stream; the resume token was not found."
_OPTIMIZED = 7182803


def is_deliberate(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether the differences between two readings of ``plan`` are meant."""
    return (
        plan.damaged
        or _resumes_after_what_it_leaves_out(plan, mongos, router)
        or _OPTIMIZED in (failure.code for failure in mongos.failures)
    )


def _resumes_after_what_it_leaves_out(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether the stages leave out the event that the stream resumes after.

    Whether and when a server misses it depends on how much of the stages it runs before it looks
    for the event.
    """
    missed = [_missed(reading) for reading in (mongos, router)]
    return missed[0] != missed[1] and len(plan.command["pipeline"]) > 1


def _missed(reading: Reading) -> bool:
    return any(failure.message.startswith(_NOT_FOUND) for failure in reading.failures)
