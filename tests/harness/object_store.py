"""A local stand-in of S3 in a process of its own, whose server can be stopped and started again.

Its objects live in that process, so an outage loses none.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.ports import free_port

BUCKET = "lake"


class ObjectStore:
    """The server of one bucket.

    Attributes:
        environment: the variables of AWS by which clients find it, and log in.
    """

    def __init__(self) -> None:
        port = free_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        command = [sys.executable, "-m", "tests.harness.object_store", str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._answer()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._ask("stop")

    def start(self) -> None:
        """Accept connections again."""
        self._ask("start")

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _ask(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"done\n"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a stand-in of S3 with an empty bucket."""
    store = ObjectStore()
    try:
        yield store
    finally:
        store.end()


def _serve(port: int) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    print("done", flush=True)
    for line in sys.stdin:
        if line.strip() == "stop":
            server.stop()
        else:
            server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
            server.start()
        print("done", flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
