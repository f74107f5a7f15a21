"""Starts the built image on a cluster: ``python -m tests.packaging.image TAG``, as root.

buildah mounts the image's files, which a mount namespace of their own makes read-only, with a tmpfs
on /tmp; the image's own command runs there as the image's own user. Checked are the image's health
check, a change stream, the user, the file system, and that SIGTERM ends it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.clusters import Client, TestCluster, start_cluster
from tests.harness.ports import free_port
from tests.harness.until import wait_for

_BUILDAH = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
_READ_ONLY = (
    'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && mount -t tmpfs tmpfs "$0/tmp" '
    '&& exec chroot --userspec="$1" "$0" /usr/bin/env -i {environment} {command}'
)


def buildah(*arguments: str) -> str:
    """Run buildah and return its output."""
    return subprocess.run(
        ["buildah", *arguments], env=_BUILDAH, check=True, capture_output=True, text=True
    ).stdout.strip()


class Image:
    """An image whose files are mounted at ``root``; ``settings`` are those of its commands."""

    def __init__(self, tag: str) -> None:
        self._container = buildah("from", "--pull-never", tag)
        self.root = Path(buildah("mount", self._container))
        self.settings = json.loads(buildah("inspect", "--type", "image", tag))["Docker"]["config"]

    def start(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Start a command as the image's user, on a read-only file system."""
        variables = [*self.settings["Env"], *(f"{k}={v}" for k, v in environment.items())]
        script = _READ_ONLY.format(
            environment=" ".join(map(_quoted, variables)), command=" ".join(map(_quoted, command))
        )
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", script, str(self.root), self.settings["User"]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def health(self, port: int) -> int:
        """Return the exit status of the image's health check for the admin port ``port``."""
        kind, *command = self.settings["Healthcheck"]["Test"]
        assert kind == "CMD", kind
        check = self.start(command, HEALTH_URL=f"http://127.0.0.1:{port}/healthz")
        check.communicate(timeout=30)
        return check.returncode

    def close(self) -> None:
        """Remove what was mounted."""
        buildah("rm", self._container)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def check(image: Image, cluster: TestCluster) -> None:
    """Start the image on a cluster and check it; raises AssertionError."""
    port, admin = free_port(), free_port()
    arguments = ["--configdb", cluster.configdb, "--upstream", cluster.mongos_uri.rstrip("/")]
    arguments += ["--port", str(port), "--admin-port", str(admin), "--workers", "2"]
    assert image.health(admin) != 0, "healthy before the start"
    packages = image.root.glob("opt/mergerouter/lib/python*/site-packages/router/__pycache__/*.pyc")
    assert any(packages), "each process would compile all packages when it starts"
    router = image.start([*image.settings["Entrypoint"], "serve", *arguments])
    try:
        wait_for(lambda: router.poll() is not None or image.health(admin) == 0, "health", 60)
        assert router.poll() is None, router.communicate()[0]
        status = Path(f"/proc/{router.pid}/status").read_text()
        assert "Uid:\t65532\t65532\t65532\t65532" in status, status
        mounts = Path(f"/proc/{router.pid}/mountinfo").read_text().splitlines()
        (root,) = [line for line in mounts if line.split()[4] == "/"]
        assert root.split()[5].split(",")[0] == "ro", root
        written = image.start(["touch", "/opt/mergerouter/x"])
        assert "Read-only file system" in written.communicate(timeout=30)[0]
        uri = f"mongodb://127.0.0.1:{port}/?serverSelectionTimeoutMS=60000"
        with Client(uri) as client, client.db.c.watch() as stream:
            client.db.c.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}
        began = time.monotonic()
        router.send_signal(signal.SIGTERM)
        output, _ = router.communicate(timeout=30)
        assert router.returncode == 0, output
        print(f"healthy, user 65532, read-only; ended in {time.monotonic() - began:.1f} s")
    finally:
        if router.poll() is None:
            router.kill()
            router.communicate()


def main() -> None:
    """Check the image that the command line names."""
    image = Image(sys.argv[1])
    try:
        with start_cluster(2) as cluster:
            check(image, cluster)
    finally:
        image.close()


if __name__ == "__main__":
    main()
