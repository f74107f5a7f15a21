"""Ends a session on the router when the process that used it is gone, even by SIGKILL.

Spark kills the process that plans a query's batches, which then cannot close its cursor: the router
would keep it, and read ahead for it, for ten minutes more. So that process has a child that waits
for the end of its standard input, which closes when the parent ends, and then ends the parent's
session; cursors end with their session (docs/protocol.md#cursor-replies).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from bson import json_util

_TIMEOUT = 5.0


class SessionGuard:
    """The child process that guards one session. `close` lets it end the session and waits.

    The connection string is passed over standard input, so that no process list shows it.
    """

    def __init__(self, uri: str, session: Mapping[str, Any]) -> None:
        self._child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # not reached by a signal to Spark's process group
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        line = json_util.dumps({"uri": uri, "session": session}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # a guard that cannot run has reported why
            self._input.write(line.encode())
            self._input.flush()

    def close(self) -> None:
        """End the session now. It waits for a bounded time."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        try:
            self._child.wait(2 * _TIMEOUT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    @property
    def _input(self) -> IO[bytes]:
        assert self._child.stdin is not None
        return self._child.stdin


def main() -> None:
    """The child: one line with what to guard, then nothing until the parent is gone."""
    guarded = json_util.loads(sys.stdin.readline() or "null")
    sys.stdin.read()
    if guarded is None:
        return
    from pymongo import MongoClient  # the child stays small while it waits
    from pymongo.errors import PyMongoError

    milliseconds = int(_TIMEOUT * 1000)
    with contextlib.suppress(PyMongoError):  # an unreachable router times cursors out
        client: MongoClient[dict[str, Any]] = MongoClient(
            guarded["uri"],
            appname="mergerouter-spark",
            serverSelectionTimeoutMS=milliseconds,
            socketTimeoutMS=milliseconds,
        )
        client.admin.command("endSessions", [guarded["session"]])


if __name__ == "__main__":
    main()
