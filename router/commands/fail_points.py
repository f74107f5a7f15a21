"""Fail points for drivers' tests, which only a router with ``enableTestCommands`` loads.

They act in the router. A command for the upstream fails before it is relayed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson.int64 import Int64

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call
from router.commands.elsewhere import everywhere_else
from router.commands.fail_point import FailPoint, integer_field
from router.commands.fields import text
from router.request.stream_commands import is_change_stream
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.documents import encode

_CONFIGURE: Final = "configureFailPoint"
_FAIL_COMMAND: Final = "failCommand"
_FAIL_GET_MORE: Final = "failGetMoreAfterCursorCheckout"
_TIMES_ENTERED: Final = "timesEntered"
_LABELS = "errorLabels"
_WRITE_ERROR = "writeConcernError"
_SECONDS_PER_MS = 0.001
_WRITES = frozenset(
    {
        "abortTransaction", "aggregate", "bulkWrite", "collMod", "commitTransaction", "create",
        "createIndexes", "delete", "deleteIndexes", "drop", "dropDatabase", "dropIndexes",
        "findAndModify", "findandmodify", "insert", "renameCollection", "update",
    }
)  # fmt: skip
# Codes that allow a driver to retry a whole transaction; the second set does not allow it at
# commitTransaction and abortTransaction.
_TRANSIENT_CODES = frozenset({24, 63, 112, 150, 246, 251, 267, 13388})
_RETRIABLE_CODES = frozenset({6, 7, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})


class FailPoints:
    """The fail points that drivers' specification tests use, as mongos implements them."""

    def __init__(self) -> None:
        self._points = {_FAIL_COMMAND: FailPoint(), _FAIL_GET_MORE: FailPoint()}

    async def before_command(self, call: Call, names: Sequence[str]) -> None:
        """Apply ``failCommand``: block the command, fail it, or close the connection.

        Args:
            call: the command.
            names: all names of the command.

        Raises:
            CommandError: the configured error, with the configured labels or else mongos's.
            NetworkError: the fail point closes the connection.
        """
        data = self._points[_FAIL_COMMAND].enter(
            lambda data: _fails(data) and _concerns(data, call, names, _namespace(call))
        )
        await self._share(call)
        if data is None:
            return
        if data.get("blockConnection") is True:
            await _block(call, data)
        if data.get("closeConnection") is True:
            raise NetworkError(f"a fail point closes the connection in {call.name}")
        if "errorCode" in data:
            raise _failure(call, data)

    async def after_checkout(self, call: Call, namespace: str) -> None:
        """Apply ``failGetMoreAfterCursorCheckout`` to a getMore that holds its cursor.

        Args:
            call: the getMore.
            namespace: the cursor's namespace.

        Raises:
            CommandError: the configured error, InternalError by default; not yet labelled.
        """
        data = self._points[_FAIL_GET_MORE].enter(
            lambda data: _concerns(
                {**data, "failCommands": ["getMore"]}, call, ("getMore",), namespace
            )
        )
        await self._share(call)
        if data is not None:
            code = ErrorCode.InternalError
            given = integer_field(data, "errorCode") if data.get("errorCode") else code
            raise CommandError(given, f"Hit the '{_FAIL_GET_MORE}' failpoint")

    async def added_to_reply(self, call: Call) -> Mapping[str, Any]:
        """Return the fields that ``failCommand`` adds to a write's reply: a writeConcernError.

        A fail point that also has an error code, or closes the connection, has already acted.
        """
        data = self._points[_FAIL_COMMAND].enter(
            lambda data: (
                call.name in _WRITES
                and _WRITE_ERROR in data
                and _concerns(data, call, (call.name,), _namespace(call))
            )
        )
        await self._share(call)
        if data is None:
            return {}
        labels = data.get(_LABELS)
        return {_WRITE_ERROR: data[_WRITE_ERROR]} | ({_LABELS: labels} if labels else {})

    async def configure(self, call: Call) -> AnyAnswer:
        """Set one of the router's fail points; pass all others to the upstream.

        Raises:
            CommandError: the fail point is unknown, or its mode or data is invalid.
        """
        name = text(call.command, _CONFIGURE, _CONFIGURE)
        point = self._points.get(name)
        if point is None:
            if call.upstream is not None:
                return PASS_THROUGH
            raise CommandError(ErrorCode.FailPointSetFailed, f"{name} not found")
        count = point.configure(call.command)
        if call.client.is_worker:  # it has shared the fail point's state
            point.times_entered, point.changed = int(call.command[_TIMES_ENTERED]), False
        await self._share(call)
        return Answer({"count": Int64(count)})

    async def _share(self, call: Call) -> None:
        """Send the fail points that have changed to the other processes, with their counts."""
        for name, point in self._points.items():
            if point.changed:
                point.changed = False
                state = {"mode": point.mode(), "data": point.data}
                entered = {_TIMES_ENTERED: Int64(point.times_entered)}
                await everywhere_else(call, {_CONFIGURE: name, **state, **entered})


def _fails(data: Mapping[str, Any]) -> bool:
    if data.get("closeConnection") is True or data.get("blockConnection") is True:
        return True
    try:
        integer_field(data, "errorCode")
    except (KeyError, CommandError):  # without a code mongos does not fail the command
        return False
    return True


def _concerns(data: Mapping[str, Any], call: Call, names: Sequence[str], namespace: str) -> bool:
    if call.name == _CONFIGURE:
        return False
    if "threadName" in data and data["threadName"] != f"conn{call.client.connection_id}":
        return False
    if "appName" in data and data["appName"] != _app_name(call):
        return False
    if "namespace" in data and data["namespace"] != namespace:
        return False
    if "failAllCommands" in data:
        return True
    listed = data.get("failCommands")
    return isinstance(listed, list) and any(name in listed for name in names)


def _app_name(call: Call) -> object:
    # The first hello carries the metadata itself.
    metadata = call.client.metadata or call.command.get("client")
    application = metadata.get("application") if isinstance(metadata, Mapping) else None
    return application.get("name") if isinstance(application, Mapping) else None


def _namespace(call: Call) -> str:
    field = "collection" if call.name == "getMore" else call.name
    collection = call.command.get(field)
    return f"{call.database}.{collection}" if isinstance(collection, str) else call.database


async def _block(call: Call, data: Mapping[str, Any]) -> None:
    try:
        wait = integer_field(data, "blockTimeMS")
    except (KeyError, CommandError):
        raise CommandError(
            ErrorCode.InvalidOptions, "must specify 'blockTimeMS' when 'blockConnection' is true"
        ) from None
    if wait < 0:
        raise CommandError(ErrorCode.InvalidOptions, "'blockTimeMS' must be non-negative")
    limit = call.command.get("maxTimeMS")
    # A getMore's maxTimeMS limits the wait for events, not the time of the command.
    if isinstance(limit, int) and 0 < limit < wait and call.name != "getMore":
        await asyncio.sleep(limit * _SECONDS_PER_MS)
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    await asyncio.sleep(wait * _SECONDS_PER_MS)


def _failure(call: Call, data: Mapping[str, Any]) -> CommandError:
    code = integer_field(data, "errorCode")
    extra = data.get("errorExtraInfo")
    labels = data.get(_LABELS)
    error = CommandError(
        code,
        f"Failing command via '{_FAIL_COMMAND}' failpoint",
        extra=extra if isinstance(extra, Mapping) else None,
    )
    if isinstance(labels, list):  # replaces the server's own labels, even if empty
        error.labels = frozenset(str(label) for label in labels)
    elif call.command.get("autocommit") is False and _transient(call.name, code):
        error.labels = frozenset({"TransientTransactionError"})
    elif call.name == "aggregate" and is_change_stream(encode(call.command)):
        return error.with_change_stream_label()
    return error


def _transient(name: str, code: int) -> bool:
    ends = name in ("commitTransaction", "abortTransaction")
    return code in _TRANSIENT_CODES or (code in _RETRIABLE_CODES and not ends)
