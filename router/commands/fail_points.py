"""Fail points for drivers' tests, which only a router with ``enableTestCommands`` loads.

They act in the router. A command for the upstream fails before it is relayed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bson.int64 import Int64

from router.commands.call import Call
from router.commands.command import answers
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer
from router.cursors.cursor import MergedCursor
from router.parameter import MILLISECONDS
from router.request.field_checks import text
from router.request.recognition import is_change_stream
from shard_client.errors import RESUMABLE_CODES, CommandError, ErrorCode, NetworkError
from shard_client.wire.documents import encode

CONFIGURE: Final = "configureFailPoint"
_FAIL_COMMAND: Final = "failCommand"
_FAIL_GET_MORE: Final = "failGetMoreAfterCursorCheckout"
_MODES: Final = "'off', 'alwaysOn' or {times: n}"
_DATA: Final = frozenset(
    {
        "appName", "blockConnection", "blockTimeMS", "closeConnection", "errorCode", "errorLabels",
        "failCommands",
    }
)  # fmt: skip
_TRANSIENT: Final = frozenset(
    {
        ErrorCode.LockTimeout, ErrorCode.NoSuchTransaction, ErrorCode.PreparedTransactionInProgress,
        ErrorCode.SnapshotUnavailable, ErrorCode.WriteConflict,
    }
)  # fmt: skip
"""Codes of a transaction's command that carry TransientTransactionError."""


@dataclass(slots=True)
class _Point:
    """A fail point: how often it may still fire (None: always), and its data."""

    remaining: int | None = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    count: int = 0

    def count_command(self) -> bool:
        """Count a command that it applies to; return whether the command fails."""
        if self.remaining == 0:
            return False
        if self.remaining is not None:
            self.remaining -= 1
        self.count += 1
        return True


class FailPoints:
    """The two fail points that drivers' tests of change streams use, in one process."""

    def __init__(self) -> None:
        self._points = {_FAIL_COMMAND: _Point(), _FAIL_GET_MORE: _Point()}
        self.set_on_upstream: set[str] = set()
        """The names of those that the upstream has instead."""

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def set(self, command: Mapping[str, Any]) -> int:
        """Obey a configureFailPoint of one of them; return how often it has fired so far.

        Raises CommandError: the mode or the data is not one of those that the router knows.
        """
        point = self._points[command[CONFIGURE]]
        point.remaining = 0
        remaining, data = _times(command.get("mode")), command.get("data", {})
        if not isinstance(data, Mapping) or not data.keys() <= _DATA:
            message = f"the fail points of mergerouter know the data {', '.join(sorted(_DATA))}"
            raise CommandError(ErrorCode.BadValue, message)
        point.remaining, point.data = remaining, data
        return point.count

    async def before(self, call: Call, names: Sequence[str]) -> None:
        """Apply ``failCommand`` to a command with these names: block it, fail it, or disconnect.

        Raises CommandError: the configured error, with the configured labels or else mongos's;
        NetworkError: the fail point closes the connection.
        """
        point = self._points[_FAIL_COMMAND]
        data = point.data
        listed = data.get("failCommands", ())
        if not any(name in listed for name in names) or not _concerns(data, call):
            return
        if not point.count_command():
            return
        if data.get("blockConnection"):
            await asyncio.sleep(data.get("blockTimeMS", 0) * MILLISECONDS)
        if data.get("closeConnection"):
            raise NetworkError(f"a fail point closes the connection in {call.name}")
        if "errorCode" in data:
            raise _failure(call, data)

    def after_checkout(self, call: Call, cursor: MergedCursor) -> None:
        """Apply ``failGetMoreAfterCursorCheckout`` to a getMore that holds ``cursor``, and end it.

        Raises CommandError: the configured error, InternalError by default; not yet labelled.
        """
        point = self._points[_FAIL_GET_MORE]
        if _concerns(point.data, call) and point.count_command():
            code = point.data.get("errorCode", ErrorCode.InternalError)
            cursor.close()
            raise CommandError(code, f"Hit the '{_FAIL_GET_MORE}' failpoint")


def _times(mode: object) -> int | None:
    """Return how often a fail point of this mode fires, None for always; raises CommandError."""
    if mode in ("off", "alwaysOn"):
        return 0 if mode == "off" else None
    times = mode.get("times") if isinstance(mode, Mapping) and len(mode) == 1 else None
    if not isinstance(times, int) or times < 0:
        raise CommandError(ErrorCode.BadValue, f"'mode' of mergerouter's fail points is {_MODES}")
    return int(times)


def _concerns(data: Mapping[str, Any], call: Call) -> bool:
    if "appName" not in data:
        return True
    # The first hello carries the metadata itself.
    metadata = call.client.metadata or call.command.get("client")
    application = metadata.get("application") if isinstance(metadata, Mapping) else None
    return isinstance(application, Mapping) and application.get("name") == data["appName"]


def _failure(call: Call, data: Mapping[str, Any]) -> CommandError:
    error = CommandError(data["errorCode"], f"Failing command via '{_FAIL_COMMAND}' failpoint")
    labels = data.get("errorLabels")
    if labels is not None:  # replaces the server's own labels, even if empty
        error.labels = frozenset(str(label) for label in labels)
    elif "autocommit" in call.command:
        ends = call.name in ("commitTransaction", "abortTransaction")
        if error.code in _TRANSIENT or (not ends and error.code in RESUMABLE_CODES):
            return error.with_labels("TransientTransactionError")
    elif call.name == "aggregate" and is_change_stream(encode(call.command)):
        return error.with_change_stream_label()
    return error


@answers(
    CONFIGURE,
    help="set a fail point (with `enableTestCommands`)",
    admin_only=True,
    before_login=True,
)
async def configure_fail_point(call: Call) -> AnyAnswer:
    """Set one of the router's fail points; pass all others to the upstream; raises CommandError.

    The upstream also gets those with a mode or data that the router does not know, and acts on the
    commands that pass through.
    """
    fail_points = call.process.fail_points
    if fail_points is None:
        return PASS_THROUGH
    name = text(call.command, CONFIGURE, CONFIGURE)
    if name in fail_points:
        try:
            count = fail_points.set(call.command)
        except CommandError:
            if call.upstream is None:
                raise
            fail_points.set_on_upstream.add(name)
            return PASS_THROUGH
        if name in fail_points.set_on_upstream and (link := call.upstream_link) is not None:
            await link.command("admin", {CONFIGURE: name, "mode": "off"})
            fail_points.set_on_upstream.discard(name)
        return Answer({"count": Int64(count)})
    if call.upstream is not None:
        return PASS_THROUGH
    raise CommandError(ErrorCode.FailPointSetFailed, f"{name} not found")
