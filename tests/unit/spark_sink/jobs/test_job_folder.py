"""A job's folder: its lock, its record, and the starts that may continue it."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp

from spark_sink.dataclass_json import to_document
from spark_sink.errors import OptionError
from spark_sink.events.positions import AtTime, key_of
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_tables import MESSAGES
from spark_sink.jobs.report.status import lines_of, status_of
from spark_sink.snapshot.plan import Progress, SnapshotPlan
from spark_sink.snapshot.queue import BatchPart, SnapshotQueue, SnapshotRequest
from spark_sink.source.offsets import Offset

FAKE = {"namespaces": ["shop.orders"], "options": {}, "tables": ["bronze", "current"]}


def fake_job(folder: Path, record: dict[str, Any] = FAKE, **snapshot: Any) -> JobFolder:
    """A job's folder with one batch, as its checkpoint has it."""
    offsets = folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n{}\n" + json.dumps({"position": {"start": "now"}, **snapshot}))
    (folder / "job.json").write_text(json.dumps(record))
    return JobFolder(str(folder))


def test_the_status_has_a_line_for_each_requested_snapshot(tmp_path: Path) -> None:
    requests = [SnapshotRequest(f"r{n}", "incremental" if n else "blocking") for n in range(20)]
    plan = SnapshotPlan(Timestamp(5, 1), progress=Progress(3, 1, 7, 8400))
    requests[1] = replace(requests[1], plan=plan)
    folder = fake_job(tmp_path, snapshots=to_document(SnapshotQueue(requests=tuple(requests))))
    assert "uncommitted 0" in lines_of(status_of(folder))  # no process need run it
    commits = tmp_path / "checkpoint" / "commits"
    commits.mkdir()
    (commits / "0").write_text("v1\n{}")
    lines = lines_of(status_of(folder))
    nothing = "0 chunks; 0 of 0 collections"
    assert "uncommitted no batch" in lines
    assert lines[-20:] == [
        f"snapshots   blocking r0: {nothing}",
        "            incremental r1: 7 chunks with about 8,400 rows; 1 of 3 collections",
        *(f"            incremental r{n}: {nothing}" for n in range(2, 20)),
    ]


def test_a_job_continues_only_with_its_own_options(tmp_path: Path) -> None:
    folder = fake_job(tmp_path)
    folder.begin(JobRecord(("shop.orders",), {"fullDocument": "required"}))
    assert folder.record().options == {"fullDocument": "required"}
    with pytest.raises(OptionError, match="writes the tables bronze, current, not bronze:"):
        folder.begin(JobRecord(("shop.orders",), tables=("bronze",)))
    assert folder.record().namespaces == ("shop.orders",)
    folder.begin(JobRecord(("shop.items",)))
    assert folder.record().namespaces == ("shop.items",)
    assert folder.record().since == ""
    position = AtTime(Timestamp(5, 1))
    folder.checkpoint.write("q", {1: Offset(position).document}, 0)
    for options in ({}, {"fullDocument": "required"}, {"fullDocument": "required"}):
        folder.begin(JobRecord(("shop.items",), options))
        assert folder.record().since == (key_of(position) if options else "")
    record, later = folder.record(), AtTime(Timestamp(9, 1))
    (tmp_path / "job.json").write_text("{")
    folder.mend(record)  # which of these options earlier batches were read with is lost
    assert key_of(later) < folder.record().since
    folder.checkpoint.write("q", {2: Offset(later).document}, 1)
    for _ in range(2):
        folder.begin(record)
        assert folder.record().since == key_of(later)
    with pytest.raises(OptionError, match=r"reads shop\.items, not shop\.orders"):
        folder.begin(JobRecord(("shop.orders",)), once=True)


def test_a_first_batch_that_has_not_ended_keeps_where_the_job_begins(tmp_path: Path) -> None:
    """Spark repeats it from where the options of the present start say, up to its former end."""
    folder, since = fake_job(tmp_path), {"startAtOperationTime": "100,1"}
    folder.begin(JobRecord(("shop.orders",), {"fullDocument": "required"}))
    with pytest.raises(OptionError, match="begins with the present, not startAtOperationTime="):
        folder.begin(JobRecord(("shop.orders",), since))
    folder.checkpoint.write("q", {0: folder.checkpoint.offset(0)}, 0)
    folder.begin(JobRecord(("shop.orders",), since))


@pytest.mark.parametrize(
    ("former", "mode", "refusal"),
    [
        ("initial_only", "initial", ""),
        ("initial", "initial_only", ""),
        ("when_needed", "always", ""),
        ("no_data", "never", ""),
        ("no_data", "initial", "begins with the present, not a snapshot: start it as before"),
        ("initial", "no_data", "begins with a snapshot, not the present: start it as before"),
        ("custom", "initial", "begins with snapshotMode=custom, not a snapshot: start it as"),
    ],
)
def test_in_the_first_batch_job_run_and_job_snapshot_continue_each_other(
    tmp_path: Path, former: str, mode: str, refusal: str
) -> None:
    """What the batch has does not depend on whether events follow the snapshot."""
    options = {"snapshotMode": former}
    if former == "custom":
        options["snapshot.mode.custom.name"] = "modes:chosen"
    folder = fake_job(tmp_path, {**FAKE, "options": options})
    record = JobRecord(("shop.orders",), {"snapshotMode": mode})
    if refusal:
        with pytest.raises(OptionError, match=refusal):
            folder.begin(record)
        return
    if former == "initial_only":  # its rows of other collections would be read once more
        with pytest.raises(OptionError, match=r"reads shop\.orders, not shop: start"):
            folder.begin(replace(record, namespaces=("shop",)))
    folder.begin(record, once=mode == "initial_only")
    assert folder.record().options == {"snapshotMode": mode}


def test_of_a_job_on_an_object_store_the_checkpoint_is_locked(tmp_path: Path) -> None:
    store = "s3://key:secret@bucket/job?region=us-east-1&endpoint_override=127.0.0.1:1"
    first, second = (JobFolder(store, str(tmp_path / "checkpoint")) for _ in range(2))
    with first.locked(), pytest.raises(OptionError, match="is running"), second.locked():
        pass
    with second.locked():
        assert (tmp_path / "checkpoint" / "job.lock").exists()


def test_a_drive_without_locks_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("spark_sink.jobs.job_folder.fcntl.flock", no_locks)
    with JobFolder(str(tmp_path)).locked():
        assert "job.lock cannot be locked: start one process only" in capsys.readouterr().err


def test_a_snapshot_alone_is_read_once(tmp_path: Path) -> None:
    record = JobRecord(("shop.orders",))
    time = Timestamp(5, 1)
    request = SnapshotRequest("i", "initial", plan=SnapshotPlan(time))
    running = to_document(SnapshotQueue(requests=(request,)))
    fake_job(tmp_path / "a", snapshots=running).begin(record, once=True)
    ended = to_document(SnapshotQueue(batch=BatchPart(ending=request)))
    done = fake_job(tmp_path / "b", snapshots=ended)
    done.begin(record, once=True)  # it was killed in the last batch, which is repeated
    done.checkpoint.write("q", {0: done.checkpoint.offset(0)}, 0)
    with pytest.raises(OptionError, match="has finished its snapshot"):
        done.begin(record, once=True)


def test_a_job_keeps_the_options_of_its_messages(tmp_path: Path) -> None:
    written = {"namespaces": ["shop"], "tables": [MESSAGES], "messages": {"prefix": "p"}}
    folder = fake_job(tmp_path, written)
    folder.begin(JobRecord(("shop",), tables=(MESSAGES,), messages={"prefix": "p"}))
    with pytest.raises(OptionError, match="has --message prefix=p, not prefix=q: start it as"):
        folder.begin(JobRecord(("shop",), tables=(MESSAGES,), messages={"prefix": "q"}))
