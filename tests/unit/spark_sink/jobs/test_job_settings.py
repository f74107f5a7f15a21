"""The settings of a job: in its file, as flags, and in Python."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

import spark_sink
from spark_sink import running
from spark_sink.cli import job
from spark_sink.errors import OptionError
from spark_sink.events.positions import FromNow, Position
from spark_sink.jobs.checkpoint import Checkpoint
from spark_sink.jobs.history.newest_batch import restore_checkpoint
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_settings import JobSettings, load_job_settings
from spark_sink.jobs.stop_request import StopRequest
from spark_sink.options.stream_options import parse_options
from spark_sink.running import Job
from spark_sink.source.offsets import Offset
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.table_state import Batch
from tests.doubles.scripted_job import Script, follow
from tests.harness.until import wait_for

ROW = pa.table({"token": ["a"]})
LAKE: dict[str, Any] = {
    "out": "lake",
    "uri": "mongodb://router:27020",
    "trigger": "1 minute",
    "maintain": "6h",
    "keep-files": "2h",
    "verify-every": "1h",
    "verify-rate": 500,
    "repair": True,
    "conf": {"spark.master": "local[4]"},
    "deletes": "soft",
    "option": {"maxEventsPerTrigger": 1000},
    "collections": {
        "shop.orders": {"schema": "infer", "flatten": True, "mask": {"card.number": "hash"}},
        "shop.a.b": {"deletes": "hard", "exclude": ["x.y", "z"], "rename": {"q": "r"}},
    },
}


def written(tmp_path: Path, **changed: Any) -> str:
    file = tmp_path / "job.yaml"
    (tmp_path / "salt").write_text("0123456789abcdef")
    file.write_text(yaml.dump({**LAKE, "salt-file": str(tmp_path / "salt"), **changed}))
    return str(file)


def test_a_file_has_collections_with_settings_of_their_own(tmp_path: Path) -> None:
    settings = load_job_settings({"trigger": "5 seconds"}, written(tmp_path))
    assert (settings.trigger, settings.maintain, settings.keep_files) == (
        "5 seconds", 6 * 3600, 2 * 3600,
    )  # fmt: skip
    assert (settings.verify_every, settings.verify_rate, settings.repair) == (3600, 500, True)
    (second, other), (first, orders) = settings.jobs()  # in the order of the file
    assert [Path(each.address) for each in (first, second)] == [
        Path("lake/shop.orders").resolve(), Path("lake/shop.a.b").resolve(),
    ]  # fmt: skip
    assert (orders.namespaces, orders.schema, orders.flatten, orders.deletes) == (
        ("shop.orders",), "infer", True, "soft",
    )  # fmt: skip
    assert (other.schema, other.flatten, other.deletes) == ("none", False, "hard")
    for each in (orders, other):
        assert each.options["maxEventsPerTrigger"] == "1000"
        assert each.options["snapshotMode"] == "initial"
    parsed = parse_options({"uri": settings.uri, **other.options})
    assert parsed.scope.accepts("shop", "a.b")
    assert not parsed.scope.accepts("shop", "orders")
    assert [each.path for each in parsed.edits] == [(b"x", b"y"), (b"z",), (b"q",)]
    assert all(each.concerns("shop", "a.b") for each in parsed.edits)
    [mask] = parse_options({"uri": settings.uri, **orders.options}).edits
    assert mask.mask is not None
    assert (mask.path, mask.mask.rule, mask.mask.salt) == (
        (b"card", b"number"), "hash", b"0123456789abcdef",
    )  # fmt: skip


def test_a_collection_is_checked_with_what_it_inherits(tmp_path: Path) -> None:
    tables = {
        "shop.a": {"flatten": True, "message": {"prefix": "a"}},
        "shop.b": {"table": ["current"]},
    }
    changed = {"schema": "infer", "table": ["current", "messages"], "collections": tables}
    with pytest.raises(OptionError) as told:
        load_job_settings({}, written(tmp_path, message={"prefix": "p"}, **changed))
    assert str(told.value).endswith("yaml: shop.b: --message is for --table messages: give both")
    tables["shop.b"]["message"] = {}
    [(_, first), (_, second)] = load_job_settings({}, written(tmp_path, **changed)).jobs()
    assert (first.schema, first.flatten, first.messages) == ("infer", True, {"prefix": "a"})
    assert (second.schema, second.tables, second.messages) == ("infer", ("current",), {})


@pytest.mark.parametrize("name", ["schema", "columns"])
def test_what_is_given_overrides_the_file(name: str, tmp_path: Path) -> None:
    made = Job(config=written(tmp_path, schema="none"), **{name: "infer"})
    assert made.settings.columns == "infer"


def test_a_file_may_have_values_of_json_and_collections_without_settings(tmp_path: Path) -> None:
    option = {"showExpandedEvents": True, "snapshotFilters": {"shop.a": {"open": True}}}
    file = written(tmp_path, option=option, collections={"shop.a": None})
    [(_, record)] = load_job_settings({}, file).jobs()
    assert record.options["showExpandedEvents"] == "true"
    assert record.options["snapshotFilters"] == '{"shop.a": {"open": true}}'
    parse_options({"uri": "mongodb://router", **record.options})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"triger": "1s"}, "triger is not a setting. Did you mean trigger?"),
        (
            {"collections": {"shop.x": {"shema": "infer"}}},
            "collections.shop.x.shema is not a setting. Did you mean schema?",
        ),
        ({"verify-rate": "fast"}, "verify-rate must be a valid integer"),
        ({"verify-rate": 0}, "verify-rate must be greater than or equal to 1, not '0'"),
        ({"maintain": "often"}, "maintain: 'often' is not a time: write 90s, 30m, 1h or 1d"),
        ({"deletes": "never"}, "deletes must be 'hard' or 'soft', not 'never'"),
        ({"verify-every": None}, "--repair belongs to --verify-every: give both"),
        ({"table": ["gold"]}, "table must be 'bronze', 'current', 'messages' or 'transactions', "),
        ({"table": ["bronze"]}, "--verify-every compares the current table"),
        ({"flatten": True}, "--flatten is for tables with --schema: give both"),
        ({"namespaces": ["shop"]}, "namespaces and collections exclude each other"),
        ({"message": {"prefix": "p"}}, "--message is for --table messages"),
        ({"option": {"uri": "mongodb://a"}}, "--option cannot set uri: use --uri"),
        ({"option": {"field.masks": "a.b.c:hash"}}, "cannot set field.masks: --exclude, --mask"),
        ({"schema": "nowhere"}, "--schema must be infer, none, or a file that can be read"),
    ],
)
def test_what_a_file_cannot_have_is_told_with_the_remedy(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as told:
        load_job_settings({}, written(tmp_path, **changed)).jobs()
    assert message in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --confgdb c/a:1 --out x", "--confgdb is not an option. Did you mean --configdb?"),
        ("check --tabel bronze --out x", "--tabel is not an option. Did you mean --table?"),
        ("wait --timeot 1m --out x", "--timeot is not an option. Did you mean --timeout?"),
        ("run --zzz", "--zzz is not an option. job run --help lists the options."),
        ("status x --out y", "Got unexpected extra argument(s) (x): job status --help lists the "),
        ("status --out", "Option '--out' requires an argument: job status --help lists the "),
        ("status", "--out is missing. It is the job's folder: a path, or a URI of Spark's."),
        ("run shop.orders", "out is missing: name the job's folder, with --out or in the file"),
        ("signal log shop.orders --out x", "TYPE: 'log' is not one of 'execute-snapshot', "),
        ("verify --out x --rate 0", "--rate: must be greater than or equal to 1"),
        ("verify --out x --table gold", "--table: 'gold' is not one of 'bronze', 'current', "),
        ("rebuild --out x --conf a", "--conf: 'a' has no value: write NAME=VALUE"),
        ("wait --out x --timeout soon", "--timeout: 'soon' is not a time: write 90s, 30m, 1h "),
        ("verify --out x --since soon", "--since: must be a time such as 2026-01-31T12:00:00Z"),
        ("run --out x --option fulldocument", "option: 'fulldocument' has no value: write NAME="),
        ("run shop shop.orders --out x", "databases and collections cannot be mixed"),
        ("run shop.ord.* --out x", "looks like a pattern"),
        ("run shop --out x --option fullDocumnt=x", "did you mean"),
        ("run shop --out x --option uri=mongodb://a:b@c", "--option cannot set uri: use --uri"),
        ("run shop --out x --option signalFolder=y", "a job has its own"),
        ("run shop --out x --option snapshot.mode=some", "option 'snapshotMode': must be"),
        (
            "run shop --out x --table messages",
            "--table messages needs the first part of topics: --message prefix",
        ),
        (
            "run shop --out x --upstream mongodb://m:1",
            "--upstream belongs to --configdb: give both",
        ),
        ("signal stop-snapshot --out nowhere", "there is no job in"),
        ("signal execute-snapshot --out nowhere", "name the collections to read"),
        ("status --out nowhere", "there is no job in"),
    ],
)
def test_wrong_arguments_are_told_with_the_remedy(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spark_sink.jobs.stop_request.signal.signal", lambda *_: None)
    found = CliRunner().invoke(job, arguments.split())
    assert found.exit_code == 2
    assert found.output.startswith("error: ")
    assert message in found.output
    assert len(found.output.splitlines()) == 1
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("- a")
    (tmp_path / "broken").write_text("a: [")
    for name, message in (("list", "names with values"), ("broken", "as YAML"), ("no", "as YAML")):
        with pytest.raises(OptionError, match=message):
            load_job_settings({}, str(tmp_path / name))
    with pytest.raises(OptionError, match="out is missing"):
        load_job_settings({})


def test_check_says_what_a_job_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "require_cluster", lambda _: "")
    monkeypatch.setattr(running, "warn_of_unmatched_names", lambda _: None)
    file = written(tmp_path)
    checked = CliRunner().invoke(job, ["check", "--config", file])
    assert checked.exit_code == 0, checked.output
    for line in (
        f"{tmp_path}/lake/shop.orders: follows shop.orders; starts, with option "
        "snapshotMode=initial",
        "  tables bronze, current; of current: schema infer, deletes soft, flattened",
        "  option field.masks=*.*.card.number:hash",
        "a batch every 1 minute",
        "verification every 3600 s at 500/s, with repair",
    ):
        assert line in checked.output.splitlines()
    assert not (tmp_path / "lake").exists()
    settings = load_job_settings({}, file)
    for folder, record in settings.jobs():
        folder.begin(record)
        end = Offset(FromNow()).document
        folder.checkpoint.write("q", {0: end}, 0)
        for table in record.tables:
            DeltaLog(folder.table(table)).append_rows(ROW, Batch("q", 0, end))
    assert (
        "; continues after batch 0\n" in CliRunner().invoke(job, ["check", "--config", file]).output
    )
    other = written(tmp_path, deletes="hard")
    refused = CliRunner().invoke(job, ["check", "--config", other])
    assert refused.exit_code == 2
    assert "has --deletes soft, not hard" in refused.output


def of_checkpoint(where: Path, _query: str) -> None:
    shutil.rmtree(where)


def of_last_file(where: Path, _query: str) -> None:
    (where / "offsets" / "2").write_text("")


def by_older_one(where: Path, query: str) -> None:
    Checkpoint(str(where)).write(query, {0: {}}, 0)


def by_planned_one(where: Path, _query: str) -> None:
    (where / "offsets" / "3").write_text((where / "offsets" / "2").read_text())


@pytest.mark.parametrize("loss", [of_checkpoint, of_last_file, by_older_one, by_planned_one])
def test_check_tells_the_batch_after_which_a_start_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: Callable[[Path, str], None]
) -> None:
    """A start makes the checkpoint from the tables, so check does not tell what is in it."""
    monkeypatch.setattr(running, "require_cluster", lambda _: "")
    monkeypatch.setattr(running, "warn_of_unmatched_names", lambda _: None)
    out, where = tmp_path / "job", tmp_path / "job" / "checkpoint"
    record = JobRecord(options={"snapshotMode": "no_data"})
    follow(str(out), where, Script(5), record=record, batches=3)
    query = Checkpoint(str(where)).query()
    assert query is not None
    loss(where, query)
    before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    given = ["check", "--out", str(out), "--option=snapshotMode=no_data"]
    checked = CliRunner().invoke(job, given)
    assert "; continues after batch 2\n" in checked.output
    refused = CliRunner().invoke(job, [*given, "--deletes=soft"])
    assert "has --deletes hard, not soft" in refused.output
    assert {path: path.read_bytes() for path in where.rglob("*") if path.is_file()} == before
    assert restore_checkpoint(JobFolder(str(out)))[0].number == 2

    shutil.rmtree(out / "current")  # a batch that current has not
    refused = CliRunner().invoke(job, given)
    assert "lacks batches that the job has written to it" in refused.output


def test_python_has_the_same_settings_and_completion(tmp_path: Path) -> None:
    made = Job(str(tmp_path / "job"), namespaces=["shop.orders"], mask={"a": "truncate=3"})
    [(_, record)] = made.settings.jobs()
    assert record.options["field.masks"] == "*.*.a:truncate=3"
    assert Job(config=written(tmp_path)).settings.repair
    with pytest.raises(OptionError, match=r"shema is not a setting. Did you mean schema"):
        Job("x", shema="infer")
    assert {"start", "stop", "wait", "status", "verify", "settings"} <= {*dir(made)}
    with pytest.raises(TimeoutError, match=r"there is no job in .* yet"):
        made.wait("2026-01-31T12:00:00Z", timeout=0)
    assert "Job" in spark_sink.__all__


def test_a_failure_of_a_job_in_python_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OptionError("the table is lost")

    monkeypatch.setattr(running, "run_jobs", fail)
    made = Job(str(tmp_path / "job"))
    with pytest.raises(OptionError, match="the table is lost"):
        made.start().wait("2026-01-31T12:00:00Z", timeout=60)
    with pytest.raises(OptionError, match="the table is lost"), made.start():
        pass
    runs: list[object] = []
    monkeypatch.setattr(running, "run_jobs", lambda settings, *_: runs.append(settings))
    with made.start() as job:
        wait_for(lambda: len(runs) == 1 and job._running and job._running.done(), "its end")
        job.start()  # as after an end of its query, which is no failure
        job.stop()
    assert len(runs) == 2


def test_a_wait_asks_no_router_before_the_job_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router of a job's own starts again with each start, when the folder exists already."""
    may_begin, asked = threading.Event(), list[bool]()

    def run(_: JobSettings, stop: StopRequest, *__: object) -> None:
        may_begin.wait(60)
        stop.begin()
        wait_for(lambda: stop.requested, "the stop")

    def ask(*_: object) -> Position:
        asked.append(may_begin.is_set())
        raise OptionError("asked")

    monkeypatch.setattr(running, "run_jobs", run)
    monkeypatch.setattr(running, "position_to_reach", ask)
    made = Job(str(tmp_path / "job"))
    JobFolder(str(tmp_path / "job")).begin(JobRecord((), {}))
    with made.start():
        with pytest.raises(TimeoutError, match="has not begun"):
            made.wait("now", timeout=0.3)
        may_begin.set()
        with pytest.raises(OptionError, match="asked"):
            made.wait("now", timeout=60)
    assert asked == [True]


@pytest.mark.parametrize("at_end", [OSError("the JVM is gone"), KeyboardInterrupt()])
def test_a_job_s_failure_is_raised_although_its_session_cannot_end(
    at_end: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def session(*_: object) -> Iterator[Mock]:
        yield Mock()
        raise at_end

    start = Mock(run=lambda _: OptionError("the table is lost"))
    monkeypatch.setattr(running, "_Start", lambda *_: start)
    monkeypatch.setattr(running, "job_session", session)
    settings, stop = Job(str(tmp_path / "job")).settings, StopRequest(handles_signals=False)
    with pytest.raises(OptionError if isinstance(at_end, OSError) else KeyboardInterrupt):
        running.run_jobs(settings, stop)
    start.run = lambda _: None
    with pytest.raises(type(at_end)):
        running.run_jobs(settings, stop)


@pytest.mark.parametrize(
    "edit",
    [
        {"mask": {"name": "constant=a,b.c.d:hash"}},
        {"exclude": ["x,b.c.d"]},
        {"rename": {"x": "y,b.c.d:z"}},
    ],
)
def test_a_comma_cannot_add_a_field_edit_for_another_collection(edit: dict[str, Any]) -> None:
    settings = load_job_settings({"out": "lake", "uri": LAKE["uri"], **edit})
    with pytest.raises(OptionError, match="allow no comma"):
        settings.jobs()
