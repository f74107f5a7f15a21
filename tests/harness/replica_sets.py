"""Replica sets of MongoDB's own servers, with methods for faults."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tests.harness.cluster_base import Client
from tests.harness.launchers import Launcher
from tests.harness.ports import free_port
from tests.harness.server_settings import ServerSettings
from tests.harness.until import Deadline

WAIT_SECONDS = 120.0
_ALREADY_INITIALIZED = 23
_INCOMING = ("replSetHeartbeat", "replSetUpdatePosition", "replSetRequestVotes")


class ReplicaSet:
    """A replica set; its members' programs are called ``name``, ``name-1``, ``name-2``, …

    Call ``launch`` for several sets, then ``initiate`` for each: their servers start side by side.
    """

    def __init__(
        self,
        launcher: Launcher,
        name: str,
        settings: ServerSettings,
        members: int = 1,
        role: str | None = None,
    ) -> None:
        self.name = name
        self._launcher = launcher
        self._role = role
        """Its part in a sharded cluster, as a flag of mongod; None outside of one."""
        self._settings = settings
        programs = [name, *(f"{name}-{number}" for number in range(1, members))]
        self.members = {program: f"127.0.0.1:{free_port()}" for program in programs}
        """The members' addresses by program name, including removed members."""
        self._ids = {program: number for number, program in enumerate(programs)}

    @property
    def host_string(self) -> str:
        """``name/address,address``, as in config.shards."""
        return f"{self.name}/" + ",".join(self.members.values())

    def launch(self) -> None:
        """Start the servers."""
        role = [] if self._role is None else [self._role]
        for program, address in self.members.items():
            self._launcher.launch(
                program, "mongod", *role, "--replSet", self.name, "--bind_ip", "127.0.0.1",
                "--port", address.rpartition(":")[2], *self._settings.mongod(),
            )  # fmt: skip

    def initiate(self) -> None:
        """Initiate the set; wait for its primary and until all others are secondaries."""
        config: dict[str, Any] = {
            "_id": self.name,
            "members": [self._member(program) for program in self.members],
            "settings": self._settings.replica_set(),
        }
        if self._role == "--configsvr":
            config["configsvr"] = True
        first = next(iter(self.members))

        def initiated(client: Client) -> bool:
            for program in self.members:
                if not self._launcher.running(program):
                    raise RuntimeError(f"{program} has ended; see its log")
            try:
                client.admin.command("replSetInitiate", config)
            except OperationFailure as error:
                return error.code == _ALREADY_INITIALIZED
            return True

        eventually(self.uri(first), f"{self.name} to take its configuration", initiated)
        self.wait_primary()
        self.wait_healthy()

    def uri(self, program: str) -> str:
        """Return the connection string of one member."""
        return self._settings.uri(self.members[program], "directConnection=true")

    @property
    def set_uri(self) -> str:
        """The connection string of the whole set."""
        hosts = ",".join(self.members.values())
        return self._settings.uri(hosts, f"replicaSet={self.name}")

    def client(self, program: str, **options: Any) -> Client:
        """Return a client of one member that fails quickly if the member does not answer."""
        short = {"serverSelectionTimeoutMS": 2000, "socketTimeoutMS": 5000}
        return Client(self.uri(program), **{**short, **options})

    def primary(self) -> str | None:
        """Return the primary; of several that claim to be, the one with the latest term."""
        found: dict[Any, str] = {}
        for program in self.members:
            with suppress(PyMongoError), self.client(program, socketTimeoutMS=1000) as client:
                hello = client.admin.command("hello")
                if hello["isWritablePrimary"]:
                    found[hello["electionId"]] = program
        return found[max(found)] if found else None

    def wait_primary(self, other_than: str | None = None) -> str:
        """Wait for a primary other than ``other_than``; return it."""
        deadline = Deadline(WAIT_SECONDS)
        while (primary := self.primary()) in (None, other_than):
            deadline.check(f"a primary of {self.name}")
            time.sleep(0.1)
        assert primary is not None
        return primary

    def secondary(self) -> str:
        """Return a secondary; raise RuntimeError if there is none."""
        for program in self.members:
            with suppress(PyMongoError), self.client(program, socketTimeoutMS=1000) as client:
                if client.admin.command("hello").get("secondary"):
                    return program
        raise RuntimeError(f"{self.name} has no secondary")

    def wait_healthy(self) -> None:
        """Wait until there is a primary and every other configured member is a secondary."""
        deadline = Deadline(WAIT_SECONDS)
        states: Any = None
        while True:
            deadline.check(f"{self.name} to be healthy", states)
            primary = self.primary()
            if primary is not None:
                with suppress(PyMongoError), self.client(primary) as client:
                    members = client.admin.command("replSetGetStatus")["members"]
                    states = sorted(member["stateStr"] for member in members)
                    if states == ["PRIMARY", *["SECONDARY"] * (len(members) - 1)]:
                        return
            time.sleep(0.1)

    # Faults.

    def kill(self, program: str) -> None:
        """End a member as a power cut would."""
        self._launcher.kill(program)

    def start(self, program: str) -> None:
        """Restart a killed member."""
        self._launcher.relaunch(program)

    def hang(self, program: str) -> None:
        """Suspend a member's process: it accepts connections but answers nothing."""
        self._launcher.pause(program)

    def wake(self, program: str) -> None:
        """Resume a hanging member."""
        self._launcher.unpause(program)

    def step_down(self, seconds: int = 10) -> None:
        """Make the primary step down and stay secondary for some seconds."""
        primary = self.wait_primary()
        with suppress(AutoReconnect), self.client(primary) as client:
            client.admin.command("replSetStepDown", seconds, force=True)

    @contextmanager
    def fail_point(
        self, program: str, name: str, data: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Enable a fail point for the block, and disable it even after the member was down."""
        with self.client(program) as client:
            client.admin.command(
                {"configureFailPoint": name, "mode": "alwaysOn", "data": data or {}}
            )
        try:
            yield
        finally:

            def off(client: Client) -> bool:
                client.admin.command("configureFailPoint", name, mode="off")
                return True

            eventually(self.uri(program), f"{name} to be off", off)

    @contextmanager
    def lagging(self, program: str) -> Iterator[None]:
        """Stop a secondary's replication; it still answers, with outdated data."""
        with self.fail_point(program, "stopReplProducer"):
            yield

    @contextmanager
    def partitioned_primary(self) -> Iterator[str]:
        """Cut the primary off from the other members but not from clients; another is elected.

        It still answers clients as a primary, but its majority commit point does not advance, since
        no member replicates from it and it does not learn of the newer term. After the block the
        members reach each other again. Fail points do this: the primary's messages to the others
        fail, it drops theirs, the others stop replicating until one of them is elected, and the
        step-down of a primary without a majority is blocked.
        """
        former = self.wait_primary()
        others = [program for program in self.members if program != former]
        unreachable = {"cmdNames": list(_INCOMING), "errorCode": 6}
        dropping = {
            "failCommands": list(_INCOMING),
            "failInternalCommands": True,
            "closeConnection": True,
        }
        with (
            self.fail_point(former, "blockHeartbeatStepdown"),
            self.fail_point(former, "networkInterfaceCommandsFailedWithErrorCode", unreachable),
            self.fail_point(former, "failCommand", dropping),
        ):
            with self.fail_point(others[0], "stopReplProducer"):
                if len(others) > 1:
                    with self.fail_point(others[1], "stopReplProducer"):
                        self.wait_primary(other_than=former)
                else:
                    self.wait_primary(other_than=former)
            yield former

    @contextmanager
    def killed(self, program: str) -> Iterator[None]:
        """End a member as a power cut would; it restarts after the block."""
        self.kill(program)
        try:
            yield
        finally:
            self.start(program)

    @contextmanager
    def hanging(self, program: str) -> Iterator[None]:
        """Suspend a member's process for the block."""
        self.hang(program)
        try:
            yield
        finally:
            self.wake(program)

    @contextmanager
    def removed(self, program: str) -> Iterator[None]:
        """Leave a member out of the configuration for the block; its server keeps running."""
        address = self.members[program]

        def others(members: list[Any]) -> list[Any]:
            return [member for member in members if member["host"] != address]

        self._reconfigure(others)
        try:
            yield
        finally:
            self._reconfigure(lambda members: [*others(members), self._member(program)])

    def kill_cursors(self, program: str) -> None:
        """Kill all change stream cursors on a member."""
        with self.client(program) as client:
            current = [{"$currentOp": {"idleCursors": True, "allUsers": True}}]
            for operation in client.admin.aggregate(current):
                cursor = operation.get("cursor")
                if cursor is not None and "changeStream" in str(cursor.get("originatingCommand")):
                    database, _, collection = operation["ns"].partition(".")
                    killing = {"killCursors": collection, "cursors": [cursor["cursorId"]]}
                    client[database].command(killing)

    def _member(self, program: str) -> dict[str, Any]:
        return {"_id": self._ids[program], "host": self.members[program]}

    def _reconfigure(self, change: Callable[[list[Any]], list[Any]]) -> None:
        def done(client: Client) -> bool:
            config = client.admin.command("replSetGetConfig")["config"]
            config["members"] = change(config["members"])
            config["version"] += 1
            client.admin.command("replSetReconfig", config, maxTimeMS=10_000)
            return True

        eventually(self.uri, f"{self.name} to be reconfigured", done, of=self.wait_primary)


def eventually(
    uri: str | Callable[[str], str],
    what: str,
    done: Callable[[Client], bool],
    *,
    of: Callable[[], str] | None = None,
) -> None:
    """Call ``done`` with a new client until it returns true, for a bounded time.

    New clients are necessary since a connection from before replSetInitiate refuses sessions.
    ``of`` chooses the member for each try; ``uri`` then returns its connection string.
    """
    deadline = Deadline(WAIT_SECONDS)
    failure: PyMongoError | None = None
    while True:
        deadline.check(what, failure)
        at = uri if isinstance(uri, str) else uri(of() if of is not None else "")
        try:
            with Client(at, serverSelectionTimeoutMS=1000, socketTimeoutMS=20_000) as client:
                if done(client):
                    return
        except PyMongoError as error:
            failure = error
        time.sleep(0.1)
