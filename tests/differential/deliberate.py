"""Where the router differs from mongos on purpose (docs/protocol.md, section 11)."""

from tests.differential.plans import Plan
from tests.differential.reading import Reading

_NOT_FOUND = "cannot resume stream; the resume token was not found."


def is_deliberate(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether the differences between two readings of ``plan`` are meant."""
    return plan.damaged or _resumes_after_what_it_leaves_out(plan, mongos, router)


def _resumes_after_what_it_leaves_out(plan: Plan, mongos: Reading, router: Reading) -> bool:
    """Return whether the stages leave out the event that the stream resumes after.

    mongos fails on the first event that its shards' oplog filter lets through, whether or not the
    stages do; the router fails on the first event that the stages let through.
    """
    missed = [failure.message.startswith(_NOT_FOUND) for failure in mongos.failures]
    rest = len(router.events) + len(mongos.events)
    return any(missed) and not router.failures and not rest and len(plan.command["pipeline"]) > 1
