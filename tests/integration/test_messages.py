"""What an operator reads when a command fails: the cause first, nothing meant for developers."""

import re

import pytest

from tests.messages import COMMANDS, Message, commands, refusals

_FOR_DEVELOPERS = re.compile(
    r"Traceback|Errno|full error|configured timeouts|Topology|RawBSON|\\tat |Py4J|Value error"
    r"|read preference"
)
_MOST_CHARACTERS = 700

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("messages")]


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
