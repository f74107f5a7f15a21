"""Prints the messages that an operator can meet, for reading: ``python -m tests.messages``.

Each case is a command line that fails, and what it prints. tests/integration/test_messages.py holds
what is common to all of them: the cause and the remedy, and nothing meant for developers. Messages
about the values of settings are in tests/unit/router/config/test_problems.py.
"""

import os
import shlex
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pymongo.errors import OperationFailure

from router.tools.tail import cause_and_remedy
from spark_sink.errors import stream_refused
from spark_sink.jobs.failures import cause_of
from tests.harness.routers import run_command

ROOT = Path(__file__).parents[1]
_CLUSTER = "sharding: {configDB: 'cfg/127.0.0.1:1'}"
FILES = {
    "no-yaml.yaml": "net: {port: [",
    "empty-token.yaml": f"net: {{admin: {{port: 0, tokenFile: empty}}}}\n{_CLUSTER}",
    "no-key.yaml": f"security: {{keyFile: absent}}\n{_CLUSTER}",
    "open-key.yaml": f"security: {{keyFile: open}}\n{_CLUSTER}",
    "no-token.yaml": f"net: {{admin: {{port: 0, tokenFile: absent}}}}\n{_CLUSTER}",
    "exposed.yaml": f"net: {{admin: {{port: 0, bindIp: 0.0.0.0}}}}\n{_CLUSTER}",
    "open": "secret",
    "empty": "",
    "no-place": "garbage",
}
"""The files in the folder in which the commands run."""

_SERVE = "serve --configdb cfg/127.0.0.1:1"
_TAIL = "tail --uri 'mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=500'"
_JOB = "job run shop.orders --out job"
COMMANDS = (
    "serv",
    f"{_SERVE} --prot 1",
    "serve --confgdb c/a:1",
    f"{_SERVE} --bind-ip 300.1.1.1",
    f"{_SERVE} --keyFile absent",
    "check-config --config absent.yaml --offline",
    "check-config --config / --offline",
    *(f"check-config --offline --config {name}" for name in FILES if name.endswith(".yaml")),
    "check-config --configdb cfg/127.0.0.1:1 --upstream mongodb://127.0.0.1:1",
    "status --admin http://127.0.0.1:1",
    "status --admin https://127.0.0.1:1",
    "status --admin router:27022",
    "status --admin file:///etc/passwd",
    "status --admin http://127.0.0.1:1 --tlsAllowInvalidHostnames",
    "status --token-file absent",
    "status --admin https://router:1 --tlsCAFile absent",
    _TAIL,
    "tail --uri http://router:27020",
    "tail --uri-file absent",
    "tail --uri-file open",
    f"{_TAIL} --pipeline '[{{'",
    f"{_TAIL} --pipeline '{{}}'",
    f"{_TAIL} --resume-file absent/place",
    f"{_TAIL} --resume-file no-place",
    f"{_TAIL} --count 0",
    "embedded --tlsMode requireTLS",
    "embedded --keyFile absent",
    "embedded --shards 65",
    "demo --seconds x",
    "job",
    "job run",
    f"{_JOB} --uri 'mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=500'",
    f"{_JOB} --uri http://router",
    f"{_JOB} --option batchSiz=1",
    f"{_JOB} --option batchSize",
    f"{_JOB} --option 'pipeline=[{{'",
    f"{_JOB} --option 'pipeline=[{{\"$group\": {{}}}}]'",
    f"{_JOB} --option 'documentSchema=total doubel'",
    f"{_JOB} --option documents=typed --option 'documentSchema=total doubel'",
    f"{_JOB} --option uri=mongodb://router",
    f"{_JOB} --conf spark.master",
    f"{_JOB} --table silver",
    "job run shop shop.orders --out job",
    "job status --out absent",
    "job offsets --out absent",
    "job compact --out absent",
    "job verify --out absent",
    "job signal execute-snapshot --out absent",
)
"""Command lines that fail before they reach a server."""

_JAVA = """An error occurred while calling o75.start.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: java.lang.RuntimeException: writing failed
\tat org.apache.spark.Writer.write(Writer.java:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 3 more
"""
_PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by \
the Python Proxy. Return Message: Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/pyspark/sql/utils.py", line 136, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
OSError: [Errno 28] No space left on device: 'part-0.parquet'
"""
_MASTER = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[x'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3205)
"""
_MEMORY = """An error occurred while calling o75.start.
Caused by: java.lang.OutOfMemoryError: Java heap space
\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)
"""
_WORKER = (
    "[STREAM_FAILED] Query [id = 07a16ae6, runId = f7a13f0b] terminated with exception: "
    "Python worker failed to connect back. SQLSTATE: XXKST"
)
_NO_FOLDER = "Cannot create directory '/srv/none/job'. Detail: [errno 2] No such file or directory"
_DENIED = "[Errno 13] Permission denied: '/srv/tables/orders'"


class Message(NamedTuple):
    """What an operator does, and what is printed then."""

    cause: str
    text: str


def commands() -> Iterator[Message]:
    """Run each command line in a folder with FILES; yield what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            path = Path(folder) / name
            path.write_text(text)
            path.chmod(0o644 if name == "open" else 0o600)

        def run(command: str) -> Message:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
            done = run_command(*shlex.split(command), cwd=folder, env=environment)
            text = (done.stdout + done.stderr).replace("python -m router.cli", "mergerouter")
            return Message(f"mergerouter {command}", f"{text.rstrip()}\n[status {done.returncode}]")

        with ThreadPoolExecutor(2) as threads:
            yield from threads.map(run, COMMANDS)


def refusals() -> Iterator[Message]:
    """Yield what tail and a job print when a server, Spark or a disk refuses them."""
    place = Path("place")
    for code, message in (
        (13, "not authorized on shop to execute command { aggregate: 1 }"),
        (13, "command aggregate requires authentication"),
        (18, "Authentication failed."),
        (286, "Resume of change stream was not possible, as the resume point may no longer be in "
         "the oplog."),
        (40324, "Unrecognized pipeline stage name: '$mach'"),
    ):  # fmt: skip
        error = OperationFailure(message, code, {"errmsg": message, "code": code, "ok": 0.0})
        cause = f"error {code} {message.partition(' {')[0]}"
        yield Message(f"tail: {cause}", f"mergerouter tail: {cause_and_remedy(error, place)}")
        yield Message(f"job: {cause}", f"error: {stream_refused(error)}")
    for name, text in (
        ("disk full", _JAVA), ("disk full, Python", _PYTHON), ("master", _MASTER),
        ("memory", _MEMORY), ("worker", _WORKER), ("permission", _DENIED),
        ("folder", _NO_FOLDER),
    ):  # fmt: skip
        yield Message(f"job: {name}", f"error: {cause_of(RuntimeError(text))}")


def main() -> None:
    """Print all messages."""
    for message in (*commands(), *refusals()):
        print(f"$ {message.cause}\n{message.text}\n", flush=True)


if __name__ == "__main__":
    main()
