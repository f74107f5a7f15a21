"""The folder of a job: its tables, its checkpoint, and the options that it was started with.

It is read through pyarrow, without a JVM, so `status` and `offsets` are fast.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.console import say
from spark_sink.dataclass_json import NewerVersionError, from_json
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.positions import ABOVE_ALL_TOKENS, key_of
from spark_sink.folders import Folder, absolute, is_local
from spark_sink.jobs.checkpoint import Checkpoint, LoggedBatch
from spark_sink.jobs.job_tables import DEFAULT_TABLES
from spark_sink.options.snapshot_options import CUSTOM, SnapshotOptions, snapshot_options
from spark_sink.options.stream_options import named_options


@dataclass(frozen=True)
class JobRecord:
    """What a job was started with, without the connection string, which may hold a password.

    Args:
        namespaces: collections and databases.
        options: of the source, those for the namespaces among them.
        tables: those that the job writes.
        messages: the options of the table of messages, as texts.
        schema: of the current table: "none", "infer", or a schema of documents as DDL or JSON.
        deletes: "hard" or "soft".
        flatten: whether the fields of documents in documents are columns.
        checkpoint: the folder of the checkpoint, empty for the one in the job's.
        cluster: the id of the cluster that it reads, empty if unknown.
        since: a token since which the source has had these options; empty for the beginning, above
            all tokens if the record was lost.
        columns: the form of a current table whose columns follow the documents, with which
            `job rebuild` makes it again: the schema of documents as JSON, and the key's fields.

    Raises ValueError and TypeError if `since` has no cluster time.
    """

    namespaces: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = DEFAULT_TABLES
    schema: str = "none"
    deletes: str = "hard"
    flatten: bool = False
    checkpoint: str = ""
    messages: dict[str, str] = field(default_factory=dict)
    cluster: str = ""
    since: str = ""
    columns: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.since not in ("", ABOVE_ALL_TOKENS):
            cluster_time_of(self.since)

    def source_options(self, uri: str) -> dict[str, str]:
        """Return the options of the source that reads the router at `uri`."""
        return {**self.options, "uri": uri}

    @property
    def snapshot(self) -> SnapshotOptions:
        """The options of snapshots. Raises OptionError."""
        return snapshot_options(named_options(self.options))


class JobFolder:
    """A folder, given as a path or as a URI that both Spark and pyarrow know.

    `checkpoint` is the folder of the checkpoint. If it is empty, the job's earlier one counts, or
    else the one in its folder. Raises OptionError if pyarrow cannot read it.
    """

    def __init__(self, address: str, checkpoint: str = "") -> None:
        self.address = absolute(address)
        """The folder as a path or URI for Spark."""
        self._folder = Folder(address)
        self._chosen = absolute(checkpoint) if checkpoint else ""

    def table(self, name: str) -> str:
        """Return where a table is kept."""
        return f"{self.address}/{name}"

    @property
    def signals(self) -> str:
        """Where signals are read from."""
        return f"{self.address}/signals"

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Where the query keeps its offsets. Raises OptionError for a damaged record."""
        known = self._chosen or (self.record().checkpoint if self.exists else "")
        return Checkpoint(known or f"{self.address}/checkpoint")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from running or changing the job during the block.

        The lock is a file in the job's folder, or in that of the checkpoint. Object stores, and
        some network drives, have no locks: there a second start ends the first one, at a batch's
        commit. Raises OptionError if another process has the lock, and OSError if the folder cannot
        be written.
        """
        place = self.address
        if not is_local(place):
            with suppress(OptionError):  # a damaged record, which `mend` writes again
                place = self.checkpoint.address
        if not is_local(place):
            yield
            return
        path = Path(Folder(place).files.base_path) / "job.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise OptionError(
                    f"the job in {self.address} is running ({file.read()}): stop it first, or use "
                    "another folder with --out"
                ) from None
            except OSError as error:  # such as ENOLCK of NFS
                say(f"{path} cannot be locked: start one process only ({error})")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    @property
    def exists(self) -> bool:
        """Whether a job was started in the folder."""
        return self._folder.has("job.json")

    def begin(self, record: JobRecord, *, once: bool = False) -> None:
        """Write the record of this start.

        With `once`, an earlier start may have begun the snapshot, but not finished it. Raises
        OptionError if the folder has a job that these options cannot continue.
        """
        checkpoint, since = self.checkpoint, ""
        last = checkpoint.last_planned()
        old = self.require_continues(record, last, once=once)
        if last is not None:
            is_known = old.options == record.options and old.since != ABOVE_ALL_TOKENS
            since = old.since if is_known else key_of(last.end.position)
        inside = checkpoint.address == f"{self.address}/checkpoint"
        address, cluster = "" if inside else checkpoint.address, record.cluster or old.cluster
        started = replace(record, checkpoint=address, cluster=cluster, since=since)
        self._write(replace(started, columns=old.columns))

    def _write(self, record: JobRecord) -> None:
        self._folder.write("job.json", json.dumps(asdict(record), indent=2))

    def require_continues(
        self, new: JobRecord, last: LoggedBatch | None, *, once: bool = False
    ) -> JobRecord:
        """Return the record of the previous start; `last` is the newest batch of the checkpoint.

        Raises OptionError as `begin`.
        """
        if last is None:
            return self.record() if self.exists else JobRecord()
        old = self.record()
        fixed = [
            ("writes the tables", set(old.tables), set(new.tables)),
            ("has the columns of --schema", {_kind(old.schema)}, {_kind(new.schema)}),
            ("has --deletes", {old.deletes}, {new.deletes}),
            ("has --message", _texts(old.messages), _texts(new.messages)),
            ("has --flatten:", {str(old.flatten)}, {str(new.flatten)}),
        ]
        if old.cluster and new.cluster:
            fixed.append(("has documents of the cluster", {old.cluster}, {new.cluster}))
        is_first = last.number == 0 and last.committed is None
        if is_first:  # Spark repeats the first batch, from where the options now say
            fixed.append(("begins with", _beginning(old), _beginning(new)))
        if once or (is_first and not old.snapshot.policy.streams):
            fixed.append(("reads", set(old.namespaces), set(new.namespaces)))
        for name, before, now in fixed:
            if before != now:
                raise OptionError(
                    f"the job in {self.address} {name} {', '.join(sorted(before)) or 'all'}, not "
                    f"{', '.join(sorted(now)) or 'all'}: start it as before, or use another "
                    "folder with --out"
                )
        if once and last.committed is not None and not last.end.is_in_snapshot:
            raise OptionError(
                f"the job in {self.address} has finished its snapshot: use another --out"
            )
        return old

    def keep_columns(self, columns: dict[str, Any]) -> None:
        """Write the form of the current table. Raises OSError."""
        self._write(replace(self.record(), columns=columns))

    def record(self) -> JobRecord:
        """Return the record of the last start.

        Raises OptionError if there is no job, and StreamError if a newer version has written it.
        """
        text = self._folder.text("job.json")
        if text is None:
            raise OptionError(f"there is no job in {self.address}: correct --out")
        try:
            return from_json(JobRecord, text)
        except NewerVersionError as error:
            raise StreamError(f"the file {self.address}/job.json: {error}") from None
        except (ValueError, KeyError, TypeError):
            raise OptionError(
                f"the file {self.address}/job.json is damaged: start the job with its arguments of "
                "before, which writes it again"
            ) from None

    def mend(self, record: JobRecord) -> None:
        """Write the record of this start if the old one is lost or damaged, and print that."""
        if not (self.exists or self.checkpoint.batches()):
            return
        with suppress(OptionError):
            self.record()
            return
        self._write(replace(record, checkpoint=self._chosen, since=ABOVE_ALL_TOKENS))
        say("job.json was damaged, and has the arguments of this start now")


def _kind(schema: str) -> str:
    return schema if schema in ("none", "infer") else "a file"


def _beginning(record: JobRecord) -> set[str]:
    """Return where and how a job begins, whatever follows that."""
    names = ("startAtOperationTime", "resumeAfter", "startAfter")
    given, snapshot = named_options(record.options), record.snapshot
    beginning = {f"{name}={given[name]}" for name in names if name in given}
    if snapshot.policy.at_first:
        beginning.add(f"snapshotMode={CUSTOM}" if snapshot.custom else "a snapshot")
    return beginning or {"the present"}


def _texts(options: Mapping[str, str]) -> set[str]:
    """Return the options of messages that a later start may not change.

    It may correct the properties of a transform: an event that does not suit them stops the job.
    """
    return {
        name if name.lower() in ("unwrap", "outbox") else f"{name}={value}"
        for name, value in options.items()
    }
