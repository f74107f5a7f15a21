"""Fail points for drivers' own tests, under ``enableTestCommands`` only."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, Client, Command
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError

FAIL_COMMAND = "failCommand"
FAIL_GET_MORE = "failGetMoreAfterCursorCheckout"
_SECONDS_PER_MS = 0.001


@dataclass(slots=True)
class FailPoint:
    """One fail point: how often it still fires (None: always), after how many passes, and how."""

    times: int | None = 0
    skip: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    entered: int = 0

    def fires(self) -> bool:
        """Count one pass and tell whether it fails."""
        if self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.entered += 1
        return True


class FailPoints:
    """The fail points that drivers' specification tests use, as a mongos has them."""

    def __init__(self) -> None:
        self._points = {FAIL_COMMAND: FailPoint(), FAIL_GET_MORE: FailPoint()}

    def __contains__(self, name: object) -> bool:
        return name in self._points

    def configure(self, name: str, mode: object, data: Mapping[str, Any]) -> int:
        """Set a fail point and return how often it has fired so far.

        Raises:
            CommandError: there is no such mode.
        """
        point = self._points[name]
        if mode == "off":
            point.times, point.skip = 0, 0
        elif mode == "alwaysOn":
            point.times, point.skip = None, 0
        elif isinstance(mode, Mapping) and "times" in mode:
            point.times, point.skip = int(mode["times"]), 0
        elif isinstance(mode, Mapping) and "skip" in mode:
            point.times, point.skip = None, int(mode["skip"])
        else:
            raise CommandError(ErrorCode.BadValue, f"unknown mode of a fail point: {mode!r}")
        point.data = data
        return point.entered

    async def before_command(self, name: str, client: Client, command: Mapping[str, Any]) -> None:
        """Fail the command if ``failCommand`` says so.

        Args:
            name: the command's name.
            client: who sent it.
            command: the decoded command; empty if it is none of ours.

        Raises:
            CommandError: the error asked for, with the labels asked for.
            NetworkError: the connection is to be closed.
        """
        data = self._points[FAIL_COMMAND].data
        if name not in data.get("failCommands", ()) or name == "configureFailPoint":
            return
        # A first hello brings the metadata along.
        metadata = command.get("client") or client.metadata
        if "appName" in data and data["appName"] != _app_name(metadata):
            return
        if self._points[FAIL_COMMAND].fires():
            await _fail(data, name)

    async def after_checkout(self) -> None:
        """Fail a getMore that holds its cursor if the fail point says so; raises as above."""
        point = self._points[FAIL_GET_MORE]
        if point.fires():
            await _fail(point.data, "getMore")


async def configure_fail_point(call: Call) -> AnyAnswer:
    """Set one of our fail points; those of others are the upstream's.

    Raises:
        CommandError: there is no such mode.
    """
    points, name = call.node.fail_points, call.command["configureFailPoint"]
    if points is None or name not in points:
        return PASS_THROUGH
    data = call.command.get("data", {})
    return Answer({"count": points.configure(name, call.command.get("mode"), data)})


def _app_name(metadata: object) -> object:
    application = metadata.get("application") if isinstance(metadata, Mapping) else None
    return application.get("name") if isinstance(application, Mapping) else None


async def _fail(data: Mapping[str, Any], name: str) -> None:
    if data.get("blockConnection"):
        await asyncio.sleep(data.get("blockTimeMS", 0) * _SECONDS_PER_MS)
    if data.get("closeConnection"):
        raise NetworkError(f"a fail point closes the connection in {name}")
    if "errorCode" in data:
        raise CommandError(
            data["errorCode"],
            f"Failing command via '{FAIL_COMMAND}' failpoint",
            labels=data.get("errorLabels", ()),
        )


COMMANDS = (
    Command(
        ("configureFailPoint",),
        configure_fail_point,
        "set a fail point",
        admin_only=True,
        for_tests=True,
    ),
)
