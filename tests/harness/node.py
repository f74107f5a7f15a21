"""Programs of Node.js in tests: scripts with Node's driver, and mongosh."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages

SCRIPTS = Path(__file__).parents[1] / "integration" / "node"
_SECONDS = 120.0


class NodePrograms:
    """Runs the scripts of tests/integration/node, and mongosh; skips the test without npm."""

    def __init__(self) -> None:
        try:
            self._modules = node_packages(SCRIPTS / "package.json")
        except DownloadError as error:
            pytest.skip(f"Node's packages are not available: {error}")

    def run(self, script: str, *arguments: str) -> Any:
        """Run a script; return the document in its last line of output."""
        return self._last_line("node", script, *arguments)

    def mongosh(self, uri: str, script: str) -> Any:
        """Run a script in a shell connected to ``uri``; return the document that it prints last."""
        shell = self._modules / ".bin" / "mongosh"
        if not shell.exists():
            pytest.skip("npm could not install mongosh")
        return self._last_line(str(shell), "--quiet", "--norc", uri, "--eval", script)

    def _last_line(self, *command: str) -> Any:
        finished = subprocess.run(
            command,
            cwd=SCRIPTS,
            env={**os.environ, "NODE_PATH": str(self._modules)},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout.strip().splitlines()[-1])
