"""The command line: flags and the messages about invalid settings."""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, version
from typing import Any

import pytest
import structlog
import typer
from typer.testing import CliRunner

from router import cli
from router.config.command_line import FLAGS, SubCommand
from router.config.settings import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Settings]]:
    """Replace the server; return the settings that it was started with."""
    settings: list[Settings] = []

    async def run(given: Settings) -> None:
        settings.append(given)

    monkeypatch.setattr("router.run.run_until_signalled", run)
    yield settings
    structlog.reset_defaults()


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command(cls=SubCommand)(cli.serve)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run ``mergerouter`` with these arguments; return its exit status."""
    monkeypatch.setattr("sys.argv", ["mergerouter", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Pass --configdb rsName/host:port"),
        (("--replicaSet", "h:1"), "replication.replicaSet: must be setName/host:port"),
        (("--replicaSet", "config/h:1"), "a set of the name config is a config server"),
        (("--replicaSet", "r/h:1", "--configdb", "c/h:1"), "replicaSet excludes sharding.configDB"),
        (("--replicaSet", "r/h:1", "--upstream", "mongodb://h:1"), "excludes upstream"),
        (("--configdb", "c/h:1", "--setParameter", "x=1"), "setParameter.x is not a setting"),
        (("--configdb", "c/h:1", "--setParameter", "x"), "'x' has no value: write name=value"),
        (("--config", "/does/not/exist"), "--config: cannot use /does/not/exist: No such file"),
        (("--configdb",), "Option '--configdb' requires an argument"),
        (
            ("--configdb", "c/h:1", "--port", "abc"),
            "--port: must be a valid integer, unable to parse string as an integer. The port for",
        ),
    ],
)
def test_messages_name_the_invalid_setting(
    arguments: tuple[str, ...], said: str, served: list[Settings]
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not served


def test_flags_are_named_as_in_mongos(served: list[Settings]) -> None:
    result = invoke(
        "--configdb", "cfg/a:1,b:2", "--port", "5", "--bind_ip", "127.0.0.1,::1",
        "--setParameter", "maxCursors=7", "--setParameter", "cursorTimeoutMillis=1",
        "--upstream", "mongodb://m:9", "--feed-port", "6", "--maxConns", "8",
        "--localThreshold", "30",
        "--networkMessageCompressors", "zlib", "-vv",
    )  # fmt: skip
    assert result.exit_code == 0
    (settings,) = served
    assert settings.net.hosts == ["127.0.0.1", "::1"]
    assert settings.replication.local_ping_threshold_ms == 30
    assert settings.given() == {
        "feed": {"port": 6},
        "net": {
            "bindIp": "127.0.0.1,::1",
            "compression": {"compressors": "zlib"},
            "maxIncomingConnections": 8,
            "port": 5,
        },
        "replication": {"localPingThresholdMs": 30},
        "setParameter": {"cursorTimeoutMillis": 1.0, "maxCursors": 7},
        "sharding": {"configDB": "cfg/a:1,b:2"},
        "systemLog": {"verbosity": 2},
        "upstream": "mongodb://m:9",
    }


def test_the_help_of_every_flag_is_that_of_its_setting() -> None:
    app = typer.Typer(add_completion=False)
    app.command(cls=SubCommand)(cli.serve)
    command = typer.main.get_command(app)
    options = {name for option in command.params for name in option.opts}
    made = {name for names in FLAGS.values() for name in names}
    assert options - made == {"--config", "-f", "--setParameter"}
    assert made <= options


def test_a_port_in_use_ends_with_a_message_and_mongos_s_status(
    monkeypatch: pytest.MonkeyPatch, served: list[Settings]
) -> None:
    async def fail(_settings: Settings) -> None:
        raise OSError("address in use")

    monkeypatch.setattr("router.run.run_until_signalled", fail)
    result = invoke("--configdb", "cfg/a:1")
    assert result.exit_code == 48
    assert "address in use" in result.output


def test_a_command_without_its_packages_tells_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("job", "no_such_package:run [spark]", "mergerouter.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [point])
    monkeypatch.setattr(cli, "requires", lambda _: ["absent-one>=4.2; extra == 'spark'", "typer"])
    assert ended(monkeypatch, "job", "run", "shop", "--out", "x") == 1
    assert f"{sys.executable} -m pip install 'absent-one>=4.2'\n" in capsys.readouterr().err


def test_a_group_of_commands_is_one_entry_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("job", "spark_sink.cli:job [spark]", "mergerouter.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [point])
    assert ended(monkeypatch, "job", "run", "--help") == 0
    assert "--trigger" in capsys.readouterr().out


def test_an_unknown_command_is_answered_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "srve") == 2
    assert "srve is not a command. Did you mean serve?" in capsys.readouterr().err


def test_the_version_is_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stdout(io.StringIO()) as output:
        assert ended(monkeypatch, "--version") == 0
    assert output.getvalue() == f"mergerouter {version('mergerouter')}\n"


@pytest.mark.parametrize(
    "command", ["", "serve", "tail", "check-config", "embedded", "demo", "job"]
)
def test_help_imports_nothing_that_is_slow(command: str) -> None:
    slow = ["aiohttp", "jinja2", "mongomock", "motor", "pyarrow", "pyspark", "structlog", "uvloop"]
    program = (
        "import sys\nfrom router.cli import main\n"
        f"sys.argv = ['mergerouter', *{[command] if command else []}, '--help']\n"
        "try:\n    main()\nfinally:\n"
        f"    print(*[each for each in {slow} if each in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Usage: " in done.stdout
    assert done.stderr.strip() == ""


def test_help_cuts_no_flag_at_80_columns(served: list[Settings]) -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=SubCommand)(cli.serve)
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["--help"]).output
    assert [each for names in FLAGS.values() for each in names if each not in shown] == []
