"""The commands that the router answers, by their names, and the checks before each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from router.access.authorization import login_required, require
from router.commands.call import Call
from router.commands.reply_bodies import AnyAnswer
from router.privileges import CLUSTER, User
from router.request.field_checks import check_api
from shard_client.errors import CommandError, ErrorCode

UNKNOWN: Final = "<UNKNOWN>"
_USUAL: Final = frozenset((
    "collStats", "count", "create", "createIndexes", "dbStats", "delete", "distinct", "drop",
    "dropDatabase", "dropIndexes", "find", "findAndModify", "getMore", "insert",
    "listCollections", "listDatabases", "listIndexes", "update",
))  # fmt: skip
"""The commands that are counted beside the router's own: a client may send any name."""


def counted_name(name: str) -> str:
    """Return the official name of a command; those of unknown names are counted together."""
    command = COMMANDS.get(name)
    if command is not None:
        return command.names[0]
    return name if name in _USUAL else UNKNOWN


Handler = Callable[[Call], Awaitable[AnyAnswer]]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its names (the first is the official one) and its function.

    A command with ``while_quiescing`` is also answered during shutdown. With authorization, one
    without ``before_login`` requires a login, and one with ``action`` the right to that action on
    the cluster. ``is_ours``, if given, takes the raw command and the user, and returns whether the
    router answers it, so that commands for the upstream are not decoded; it raises the CommandError
    of one that need not be decoded for it. A command with ``checks_fields`` checks its time limit
    and read concern with its other fields.
    """

    names: tuple[str, ...]
    run: Handler
    help: str = ""
    admin_only: bool = False
    while_quiescing: bool = False
    before_login: bool = False
    action: str | None = None
    api_versions: tuple[str, ...] = ()
    checks_fields: bool = False
    is_ours: Callable[[bytes, User | None], bool] | None = None

    async def check(self, call: Call) -> None:
        """Make the checks that mongos makes before it runs any command; raises CommandError."""
        self._check_rights(call)
        if not self.checks_fields:
            await call.check_generic_fields()
        if "$clusterTime" in call.command:
            await call.check_time()

    def _check_rights(self, call: Call) -> None:
        check_api(self.names[0], call.command, self.api_versions)
        if self.admin_only and call.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized,
                f"{self.names[0]} may only be run against the admin database.",
            )
        if call.client.login is None or self.before_login:
            return
        user = call.user
        if user is None:
            raise login_required(self.names[0])
        if self.action is not None:
            require(user, CLUSTER, self.action, database=call.database, command=call.command)


COMMANDS: Final[dict[str, Command]] = {}
"""The commands by each of their names, including former ones."""


def answers(*names: str, **properties: Any) -> Callable[[Handler], Handler]:
    """Add the function below to ``COMMANDS``; arguments as for ``Command``."""

    def added(run: Handler) -> Handler:
        COMMANDS.update(dict.fromkeys(names, Command(names, run, **properties)))
        return run

    return added
