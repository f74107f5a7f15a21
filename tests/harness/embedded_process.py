"""The embedded cluster as a program of its own."""

from collections.abc import Mapping
from typing import Any

from embedded.demo.processes import Program
from tests.harness.cluster_base import Client, TestCluster
from tests.harness.server_settings import ServerSettings

_START_SECONDS = 120.0
EMBEDDED = "import typer; from embedded.cli import embedded; typer.run(embedded)"
"""The program ``mergerouter embedded``, without the router's package."""


class EmbeddedProcess(TestCluster):
    """``mergerouter embedded`` as a child process."""

    def __init__(self, shards: int, options: Mapping[str, Any]) -> None:
        flags = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in options.items()
            if name != "settings"
        ]
        self._settings: ServerSettings = options.get("settings") or ServerSettings()
        flags += self._settings.embedded()
        self._program = Program(
            "the embedded cluster", ["-c", EMBEDDED, f"--shards={shards}", *flags]
        )
        self.process = self._program.process
        attributes = self._program.wait_ready(_START_SECONDS)
        self.mongos = attributes["mongos"]
        self.configdb = attributes["configdb"]
        self.shards = attributes["shards"]
        self._started = len(self.shards)
        if self._settings.login:
            self.create_root(self._settings)

    @property
    def mongos_uri(self) -> str:
        return self._settings.root_uri(self.mongos)

    def direct(self, name: str, **options: Any) -> Client:
        host = self.configdb if name == "config" else self.shards[name]
        uri = self._settings.uri(host.partition("/")[2], "directConnection=true")
        return Client(uri, **options)

    @property
    def real(self) -> bool:
        return False

    def start_shard(self) -> tuple[str, str]:
        name = f"shard{self._started}"
        self._started += 1
        with Client(self.mongos_uri) as client:
            return name, client.admin.command("startShard", name)["host"]

    def stop_member(self, name: str) -> None:
        self._switch(name, "stop")

    def start_member(self, name: str) -> None:
        self._switch(name, "start")

    def hang_member(self, name: str) -> None:
        self._switch(name, "hang")

    def wake_member(self, name: str) -> None:
        self._switch(name, "goOn")

    def kill_cursors(self, name: str) -> None:
        self._switch(name, "killCursors")

    def _switch(self, name: str, to: str) -> None:
        with Client(self.mongos_uri) as client:
            client.admin.command("switchMember", name, to=to)

    @property
    def logs(self) -> list[str]:
        """The lines of its log."""
        return list(self._program.lines)

    def stop(self) -> None:
        self._program.stop()
