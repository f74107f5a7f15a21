"""What an operator reads when a command fails: the cause first, nothing meant for developers.

Messages about the values of settings are in tests/unit/router/config/test_problems.py.
"""

import functools
import multiprocessing
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from pymongo.errors import OperationFailure

from router.cli import main
from router.tools.tail import cause_and_remedy
from spark_sink.errors import stream_refused
from spark_sink.jobs.failure_texts import cause_of

_FOR_DEVELOPERS = re.compile(
    r"Traceback|Errno|full error|configured timeouts|Topology|RawBSON|\\tat |Py4J|Value error"
    r"|read preference"
)
_MOST_CHARACTERS = 700

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("messages")]

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


def run(folder: str, command: str) -> Message:
    """Run a command line in this process, which is a new one; return what it prints."""
    os.chdir(folder)
    os.environ["COLUMNS"] = "100"
    sys.argv = ["mergerouter", *shlex.split(command)]
    with tempfile.TemporaryFile("w+") as printed:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(printed.fileno(), stream.fileno())
        status: object = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        except BaseException:  # noqa: BLE001 (which Python would print)
            traceback.print_exc()
            status = 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        printed.seek(0)
        return Message(f"mergerouter {command}", f"{printed.read().rstrip()}\n[status {status}]")


def commands() -> list[Message]:
    """Run each command line in a folder with FILES; return what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            path = Path(folder) / name
            path.write_text(text)
            path.chmod(0o644 if name == "open" else 0o600)
        # Each command has a process of its own, forked from one that has imported all commands.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "router.run", "spark_sink.running"])
        with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as processes:
            return [*processes.map(functools.partial(run, folder), COMMANDS)]


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


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return [*commands(), *refusals()]


def test_each_command_fails_with_few_words_for_an_operator(messages: list[Message]) -> None:
    assert len(messages) > len(COMMANDS)
    assert [each for each in messages if _FOR_DEVELOPERS.search(each.text)] == []
    # Log lines have fields, and a command without a subcommand lists those that there are.
    assert [each for each in messages if "garbage" in each.text or "secret)" in each.text] == []
    short = [each for each in messages if not re.search(r'"msg"|^Commands:', each.text, re.M)]
    assert [each.cause for each in short if len(each.text) > _MOST_CHARACTERS] == []


def test_each_command_that_fails_has_a_status_and_a_message(messages: list[Message]) -> None:
    for each in messages[: len(COMMANDS)]:
        text, _, status = each.text.rpartition("\n[status ")
        assert text.strip(), each
        assert status != "0]", each


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("no-key.yaml", "security.keyFile: cannot use absent: No such file"),
        ("no-token.yaml", "net.admin.tokenFile: cannot use absent: No such file"),
        ("--resume-file absent/place", "absent/place: its folder does not exist. Create it"),
        ("--prot 1", "error: --prot is not an option. Did you mean --port?"),
        ("--confgdb c/a:1", "error: --confgdb is not an option. Did you mean --configdb?"),
        ("status --admin http://127.0.0.1:1", "Connection refused. Start the router with"),
        ("status --admin file:///etc/passwd", "http"),
        ("--tlsAllowInvalidHostnames", "https"),
        ("--pipeline '{}'", "not a JSON array"),
        ("--pipeline '[{'", "not JSON"),
        ("tail --uri http://", "must begin with mongodb:"),
        ("--uri-file absent", "absent"),
        ("--uri-file open", "too open"),
        ("--resume-file no-place", "holds no resume token"),
        (
            "check-config --configdb cfg/127.0.0.1:1",
            "FAIL config server: does not answer: 127.0.0.1:1: Connection refused. Check that its",
        ),
        (
            "--bind-ip 300.1.1.1",
            '"problem": "does not answer: 127.0.0.1:1: Connection refused. Check that its members',
        ),
        ("tail: error 13 command", "mergerouter tail: the router requires a login: write the user"),
        ("job: error 13 command", "error: the server requires a login: write the user and the"),
        ("job: error 13 not", "error: not allowed: the user in option 'uri' needs the privileges"),
        ("job: disk full", "error: a disk is full: free space where the job writes (--out, "),
        ("job: disk full", "(No space left on device)"),
        ("job: disk full, Python", "(No space left on device: 'part-0.parquet')"),
        ("job: master", "error: spark.master in --conf is not an address of Spark: write "),
        ("job: master", "(Could not parse Master URL: 'local[x')"),
        ("job: memory", "error: Spark has too little memory: start the job with --conf spark."),
        ("job: folder", "write there (Cannot create directory '/srv/none/job'. No such file or"),
        ("job: permission", "error: a file or folder belongs to another user: let the job's user"),
    ],
)
def test_a_message_names_the_setting_and_the_cause(
    cause: str, said: str, messages: list[Message]
) -> None:
    (found, *_) = [each for each in messages if cause in each.cause]
    assert said in found.text
