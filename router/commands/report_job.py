"""The command by which a job reports to the router, which shows it on the status page."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from bson.timestamp import Timestamp

from router.access.authorization import require_stream
from router.commands.answer import Answer
from router.commands.call import Call, answers
from router.commands.job_reports import JobReport
from router.privileges import WHOLE
from router.request.fields import at_least_zero, check_known, text, wrong_type

COMMAND: Final = "mergerouterReportJob"

LONGEST_NAME: Final = 200
LONGEST_ERROR: Final = 500
"""Most characters that are kept of a job's name and of its error."""

_LARGEST: Final = 2**53
_FIELDS = frozenset({"job", "batch", "through", "eventsPerSecond", "waits", "error", "ended"})


@answers(COMMAND, help="show a job on the router's status page")
async def report_job(call: Call) -> Answer:
    """Keep what a job says of itself, from a user who may open the job's stream.

    Raises:
        CommandError: 13, the user may not; 14, 40414, 40415 and others, a field is wrong.
    """
    command = call.command
    check_known(command, call.name, _FIELDS)
    target = command[call.name]
    collection = target if isinstance(target, str) else None
    if call.user is not None:
        require_stream(call.user, call.database, collection, command)
    owner = call.client.host
    call.node.jobs.add(
        JobReport(
            job=_plain(text(command, call.name, "job"), LONGEST_NAME),
            owner=owner if call.user_name is None else f"{call.user_name}, {owner}",
            namespace=_plain(f"{call.database}.{collection or WHOLE}", LONGEST_NAME),
            arrived=call.node.now(),
            batch=_batch(command, call.name),
            through=_through(command, call.name),
            rate=_rate(command, call.name),
            error=_error(command, call.name),
            waits=bool(command.get("waits")),
            ended=bool(command.get("ended")),
        )
    )
    return Answer({})


def _plain(value: str, longest: int) -> str:
    """Return a text of a client without control characters, and not too long."""
    shown = value if len(value) <= longest else f"{value[: longest - 1]}…"
    return "".join(each if each.isprintable() else " " for each in shown)


def _batch(command: Mapping[str, Any], name: str) -> int | None:
    number = at_least_zero(command, name, "batch")
    return None if number is None else min(number, _LARGEST)


def _error(command: Mapping[str, Any], name: str) -> str | None:
    if command.get("error") is None:
        return None
    return _plain(text(command, name, "error"), LONGEST_ERROR)


def _through(command: Mapping[str, Any], name: str) -> Timestamp | None:
    value = command.get("through")
    if value is not None and not isinstance(value, Timestamp):
        raise wrong_type(f"{name}.through", value, "timestamp")
    return value


def _rate(command: Mapping[str, Any], name: str) -> float | None:
    value = command.get("eventsPerSecond")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise wrong_type(f"{name}.eventsPerSecond", value, "double")
    return min(max(0.0, float(value)), _LARGEST)
