"""The commits of a Delta table, through delta-rs: files, and what is recorded beside them.

A commit is a file of the table's log, and changes rows and state together (`version_states`). It
has the number of a batch as one of Delta's application transactions, by which the table recognises
a repeated batch. delta-rs accepts an equal or lower number, so callers ask `has` first. If two
commits that change the state were planned from one version, delta-rs refuses one of them.

A start of a job has an epoch, a number that it writes to the table's property EPOCH. A later start
raises it by a commit of metadata. On any file system, Delta refuses all commits that were planned
before such a commit. So no commit of an earlier start can succeed after that.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)
from pyarrow import fs
from pyspark.sql.types import StructType

from spark_sink.errors import FULL_DISK, OptionError, StreamError
from spark_sink.folders import Folder, absolute
from spark_sink.tables.executors import REPORT_PROGRESS
from spark_sink.tables.parquet_parts import (
    WITH_STATISTICS,
    PartFile,
    Parts,
    RowFilter,
    TableFile,
    numbered,
)
from spark_sink.tables.table_state import Batch, TableState
from spark_sink.tables.version_states import (
    APPLICATION,
    RESTORE,
    STATE,
    StateFiles,
    commit_path,
    restored_error,
)

EPOCH = "mergerouter.epoch"
"""The property of a table with the number of the start that may write to it."""
_FILES_KEPT, _COMMITS_KEPT = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_CONFIGURATION = {_FILES_KEPT: "interval 1 hours", _COMMITS_KEPT: "interval 1 days"}
"""How long a new table keeps replaced files for their readers, and how long commits.

Each commit lists the log, which takes 2 µs for every commit in it on a local disk.
"""
_DAY = 24 * 3600
_NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
"""With the cleanup, each commit would look up the age of every commit before it."""
_COMMITS_PER_CLEANUP = 100
_STATISTICS = "delta.dataSkippingStatsColumns"
"""The property of a table with the columns that have statistics in its commits."""
_ORPHAN_HOURS = 7 * 24
"""The age at which a file that no commit names is deleted."""
_EPOCHS = 2**40
"""The most by which a new epoch exceeds the last one, at random: so those of two starts differ."""
_PATHS_LOOKED_UP = 1_000
"""Files that are looked up or deleted between two reports of progress."""
_ATTEMPTS = 10
"""How often a table's epoch is raised if other commits are faster."""
_EXCHANGES = 100
"""How often files are exchanged if other commits are faster."""
_REARRANGING = {"OPTIMIZE", "VACUUM START", "VACUUM END"}
"""The operations of commits that keep all rows, and the partitions that they are in."""
_UNREAD_FEATURES = {"deletionVectors", "columnMapping"}
"""The features of tables that other programs may turn on, and that pyarrow's reader ignores."""
_DROP = (
    "drop it in Spark with ALTER TABLE name DROP FEATURE {} TRUNCATE HISTORY, now and again a "
    "day later (docs/limitations.md#of-the-tables)"
)
_COLUMN_MAPPING = "delta.columnMapping.mode"
"""The property of a table whose files may have other names for its columns."""
_NO_FILES = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("num_records", pa.int64())]
).empty_table()


class DeletedVersionError(StreamError):
    """A version of a table cannot be read, because files of it have been deleted."""


class DeltaLog:
    """The newest version of the table at an address, a path or a URI that delta-rs knows.

    The object stands for the version that it has read or committed last. Methods raise StreamError
    where another writer was faster or the storage fails.

    Args:
        partitions: the partition columns of a new table.
        statistics_columns: the columns with statistics in the commits of a new table.
        epoch: of the start that writes to it; 0 for a writer that raises no epoch.
    """

    def __init__(
        self,
        address: str,
        partitions: Sequence[str] = (),
        statistics_columns: Sequence[str] = WITH_STATISTICS,
        *,
        epoch: int = 0,
    ) -> None:
        self.address = absolute(address)
        """The folder as a path or URI for Spark."""
        self._partitions = list(partitions)
        self._statistics_columns = statistics_columns
        self._epoch = epoch
        self._states = StateFiles(self.address)
        self._state: tuple[int | None, TableState] = None, TableState()
        self._deleted: set[str] = set()
        self._table = self._opened()

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def version(self) -> int | None:
        """The number of the version; None if there is no table."""
        return None if self._table is None else int(self._table.version())

    @property
    def id(self) -> str:
        """The id of the table, which one that is made again at the address does not have."""
        return "" if self._table is None else str(self._table.metadata().id)

    @property
    def partitions(self) -> list[str]:
        """The partition columns."""
        return self._partitions if self._table is None else self._table.metadata().partition_columns

    @property
    def schema(self) -> StructType:
        """The schema, of a table that exists."""
        assert self._table is not None
        return StructType.fromJson(json.loads(self._table.schema().to_json()))

    @property
    def statistics_columns(self) -> Sequence[str]:
        """The columns with statistics in the commits."""
        if self._table is None:
            return self._statistics_columns
        names = self._table.metadata().configuration.get(_STATISTICS)
        return names.split(",") if names else []

    def set_statistics_columns(self, names: Sequence[str]) -> None:
        """Declare that the commits have statistics of these columns, for all files.

        Where a declared column has none, pyarrow's readers assume that it is null everywhere.
        """
        if self._table is None:
            self._statistics_columns = names
        elif set(names) != set(self.statistics_columns):
            with self.stream_errors():
                self._table.alter.set_table_properties({_STATISTICS: ",".join(names)})
            self.reload()

    def keep_files(self, seconds: float) -> None:
        """Keep replaced files for `seconds`, and commits for as long, but at least for a day.

        If another commit is faster, nothing changes until the next call.
        """
        configuration = {} if self._table is None else self._table.metadata().configuration
        times = {_FILES_KEPT: seconds, _COMMITS_KEPT: max(seconds, _DAY)}
        wanted = {name: f"interval {duration:.0f} seconds" for name, duration in times.items()}
        if self._table is None or configuration.items() >= wanted.items():
            return
        with self.stream_errors(), suppress(CommitFailedError):
            self._table.alter.set_table_properties(wanted)
        self.reload()

    def reload(self) -> bool:
        """Read the commits after the version, and return whether there were any.

        Raises StreamError if one of them restored an older version, or comes from a later start of
        the job.
        """
        before = self.version
        if self._table is None:
            self._table = self._opened()
        else:
            self._update(self._table)
        self._take_epoch()
        return self.version != before

    def _update(self, table: DeltaTable) -> None:
        with self.stream_errors():
            before = table.version()
            table.update_incremental()
            later = table.version() - before
            commits = table.history(later) if later > 0 else ()
        if any(commit.get("operation") == RESTORE for commit in commits):
            raise restored_error(self.address)
        self._require_readable(table)

    def _require_readable(self, table: DeltaTable) -> None:
        """Raise StreamError if files have deleted rows, or columns under other names.

        pyarrow would return these rows, and a compaction would write them again.
        """
        unread = _UNREAD_FEATURES & {*(table.protocol().reader_features or ())}
        if table.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none":
            unread.add("columnMapping")
        for feature in sorted(unread):
            raise StreamError(
                f"version {table.version()} of the table at {self.address} has the feature "
                f"{feature} of Delta, with which its rows cannot be read here: "
                f"{_DROP.format(feature)}"
            )

    @property
    def epoch(self) -> int:
        """The epoch of the version; 0 if no start has raised it."""
        configuration = {} if self._table is None else self._table.metadata().configuration
        return int(configuration.get(EPOCH, 0))

    def later_epoch(self) -> int:
        """Return an epoch for a start that follows the one that writes to the table now."""
        return self.epoch + 1 + secrets.randbelow(_EPOCHS)

    def _take_epoch(self) -> None:
        """Give the table this start's epoch. Raises StreamError if it has a later one."""
        for _ in range(_ATTEMPTS):
            if self._table is None or self._epoch in (0, self.epoch):
                return
            self._require_epoch()
            # The next attempt tells who was faster.
            with self.stream_errors(), suppress(CommitFailedError):
                self._table.alter.set_table_properties(
                    {EPOCH: str(self._epoch)}, raise_if_not_exists=False
                )
            self._update(self._table)
        self._fail_overtaken()

    def _require_epoch(self) -> None:
        if 0 < self._epoch < self.epoch:
            raise StreamError(
                f"another start of this job has taken over the table at {self.address}, so this "
                "one ends, and nothing is lost: run one process for each table. To continue here, "
                "stop the other one first"
            )

    def has(self, batch: Batch) -> bool:
        """Return whether the table has the batch.

        Raises StreamError if another start of the job has written a batch: one with this number, a
        later one, or one that this batch does not follow.
        """
        number, last = self._transaction(batch.query), self.state().batch
        is_later = number is None or number < batch.number
        if is_later and (not last.query or not batch.offset or batch.may_follow(last)):
            return False
        if is_later or not last.is_same(batch):
            remedy = (
                "run one process for each --out. Start the job again; it continues where the "
                "tables are"
                if batch.offset
                else "start the query with its newest checkpointLocation, or with a new one"
            )
            raise StreamError(
                f"batch {batch.number} of this start does not fit the table at {self.address}, "
                f"because another start has written it: {remedy}"
            )
        return True

    def state(self) -> TableState:
        """Return the state of the version; TableState() if no commit has given it one.

        Raises StreamError if it is lost.
        """
        number = self._transaction(APPLICATION)
        if number is not None and number != self._state[0]:
            with self.stream_errors():
                self._state = number, self._states.read(number)
        return self._state[1]

    def batch(self) -> Batch:
        """Return the newest batch. Raises StreamError if there is none."""
        batch = self.state().batch
        if not batch.query:
            raise StreamError(
                f"the table at {self.address} has no batch, so no job has written it: correct the "
                "path, or restore the folder with all its files"
            )
        return batch

    def at(self, version: int, state: TableState) -> DeltaLog:
        """Return an older version to read; its commit has `state`.

        Raises DeletedVersionError if its commit or one of its files has been deleted, and
        StreamError, also if a feature of Delta that it had hides rows from pyarrow.
        """
        log = DeltaLog(self.address, self.partitions)
        assert log._table is not None
        with self.stream_errors():
            try:
                log._table.load_as_version(version)
            except DeltaError as error:
                # It is of one kind for all reasons: this raises OSError where the storage fails.
                Folder(self.address).has(commit_path(version))
                raise self._deleted_version_error(version, error) from None
            log._require_readable(log._table)
            replaced = log.paths() - self.paths()
            existing = self._existing(replaced, f"replaced files of {self.name} looked up")
            if sum(map(len, existing)) < len(replaced):
                raise self._deleted_version_error(version)
        log._state = log._transaction(APPLICATION), state
        return log

    def _deleted_version_error(self, version: int, cause: object = None) -> DeletedVersionError:
        return DeletedVersionError(
            f"files of version {version} of the table at {self.address} have been deleted: the "
            "table's property delta.deletedFileRetentionDuration says how long they are kept. Make "
            "the table of that time again with job rebuild --to",
            cause,
        )

    def files(self) -> pa.Table:
        """Return what the log says about each file, as flat columns; `path` is as in the log."""
        if self._table is None:
            return _NO_FILES
        return pa.table(self._table.get_add_actions(True))

    def files_with(self, chosen: RowFilter = ()) -> list[TableFile]:
        """Return the files without those that, by their statistics, have no chosen row."""
        files = self.files()
        for condition in chosen:
            if isinstance(condition, tuple):
                files = _with_rows(files, *condition)
        columns = {name: f"partition.{name}" for name in self.partitions}
        names = ["path", "size_bytes", "modification_time", *columns.values()]
        return [
            TableFile(
                unquote(row["path"]),
                row["size_bytes"],
                {name: row[column] for name, column in columns.items()},
                row["modification_time"],
            )
            for row in (files.select(names).to_pylist() if files.num_rows else ())
        ]

    def paths(self) -> set[str]:
        """Return the relative paths of the files."""
        return {*map(unquote, self.files()["path"].to_pylist())}

    def count(self) -> int:
        """Return the number of rows, by the statistics of files."""
        return int(pc.sum(self.files()["num_records"]).as_py() or 0)

    def append(self, parts: Sequence[PartFile], schema: pa.Schema, batch: Batch) -> None:
        """Commit files with the rows of a batch, unless the table has the batch already.

        An interrupted attempt may have committed them to this table, and not yet to another one.
        Raises StreamError.

        Args:
            parts: files that tasks have written.
            schema: of all columns; new columns are added to the table. Raises OptionError if other
                columns have another type than in the table.
        """
        self.reload()
        if not self.has(batch):
            if self._table is not None:
                self._add_columns(schema)
            checksum = sum((part.checksum for part in parts), self.state().checksum)
            self._write(parts, schema, TableState(checksum=checksum, batch=batch))

    def append_rows(self, rows: pa.Table, batch: Batch) -> None:
        """Append rows, if there are any, with the number of the batch; see `append`."""
        if not rows.num_rows:
            return
        rows = numbered(rows, batch.number)
        with Parts(self.address, rows.schema, self.partitions) as parts:
            parts.add(rows)
            written = parts.close()
        self.append(written, rows.schema, batch)

    def amend(self, batch: Batch) -> None:
        """Change what the state says about the newest batch."""
        self._write([], pa.schema([]), replace(self.state(), batch=batch))

    def replace(
        self,
        parts: Sequence[PartFile],
        schema: pa.Schema,
        state: TableState,
        replaced: Collection[str] = (),
    ) -> None:
        """Commit files instead of those whose partition is one of `replaced`.

        The same commit sets the schema and the state.
        """
        filters = [(self.partitions[0], "in", sorted(replaced))] if replaced else []
        if not filters and self._table is not None and _schema(schema) != self._table.schema():
            filters = [(name, "in", ["-"]) for name in self.partitions]  # which no file has
        self._write(parts, schema, state, filters)

    def _write(
        self,
        parts: Sequence[PartFile],
        schema: pa.Schema,
        state: TableState,
        filters: Any = None,
    ) -> None:
        """Commit files and a state, instead of the files that filters of partitions select."""
        actions = [_action(part) for part in parts]
        with self.stream_errors():
            number = self._states.write(state)
        transactions = [Transaction(APPLICATION, number)]
        if state.batch.query:
            transactions.append(Transaction(state.batch.query, state.batch.number))
        # delta-rs would commit beside a compaction of the files that it replaces.
        retries = 0 if filters else None
        properties = CommitProperties({STATE: state.document}, retries, transactions)
        if self._table is None:
            self._create(actions, schema, properties)
            return
        with self.stream_errors():
            while True:
                try:
                    self._table.create_write_transaction(
                        [*actions],
                        "overwrite" if filters else "append",  # only the former changes the schema
                        _schema(schema) if filters else self._table.schema(),
                        self.partitions,
                        partition_filters=filters or None,
                        commit_properties=properties,
                        post_commithook_properties=_NO_CLEANUP,
                    )
                except CommitFailedError:
                    if filters and self._is_rearranged():
                        continue
                    raise
                break
        self._state = number, state
        self.reload()
        if self._table.version() % _COMMITS_PER_CLEANUP == 0:
            with self.stream_errors():
                self._table.cleanup_metadata()
                self._states.clean(number)

    def _is_rearranged(self) -> bool:
        """Read later commits; return whether there are some, and they keep all rows."""
        before = self.version or 0
        self.reload()
        assert self._table is not None
        later = self._table.version() - before
        names = {commit["operation"] for commit in self._table.history(later)} if later else {""}
        return names <= _REARRANGING

    def exchange(self, former: Collection[TableFile], parts: Sequence[PartFile]) -> bool:
        """Commit files instead of the `former` ones, with the same rows.

        Return False and commit nothing if another commit has removed one of the former files: its
        rows are deleted, or in other files. The commit is valid only for the version in which all
        of them were found: delta-rs would retry it on a later version without that check.
        """
        actions = [_action(part, changes=False) for part in parts]
        removed = [_removal(file) for file in former]
        for _ in range(_EXCHANGES):
            self.reload()
            paths = self.paths()
            if actions and all(action.path in paths for action in actions):
                return True  # the store has committed without a reply
            if not all(file.path in paths for file in former):
                return False
            assert self._table is not None
            with self.stream_errors(), suppress(CommitFailedError):
                self._table.create_write_transaction(
                    [*actions, *removed],
                    "append",
                    self._table.schema(),
                    self.partitions,
                    commit_properties=CommitProperties(max_commit_retries=0),
                    post_commithook_properties=_NO_CLEANUP,
                )
                self.reload()
                return True
        raise StreamError(
            f"the table at {self.address} was written {_EXCHANGES} times while its new files were "
            "being committed: compact it again when less is written; nothing is lost"
        )

    def vacuum(self, *, full: bool = False) -> int:
        """Delete the files that were replaced longer ago than the table's retention; count them.

        With `full`, files that no commit names are deleted as well once they are a week old, or the
        retention if that is longer: tasks that were interrupted or ran twice have left them. A
        running batch may still commit younger ones. delta-rs only lists the files: its own vacuum
        deletes and counts those again that are gone, and does not report progress.
        """
        self.reload()
        assert self._table is not None
        with self.stream_errors():
            removed = set(self._table.vacuum())
            if full:
                removed |= {*self._orphans(self._table)}
            # The log names files for a while after this object or another program has deleted them.
            undeleted, count = removed - self._deleted, 0
            for old in self._existing(undeleted, f"old files of {self.name} deleted"):
                Folder(self.address).remove(*old)
                count += len(old)
        self._deleted = removed
        return count

    def _orphans(self, table: DeltaTable) -> list[str]:
        """Return old files that are not in the version, also those that no commit names."""
        try:
            return table.vacuum(_ORPHAN_HOURS, full=True)
        except DeltaError as error:
            if "Invalid retention period" not in str(error):
                raise
            return table.vacuum(full=True)  # the table keeps files for longer than that

    def _existing(self, paths: Collection[str], what: str) -> Iterator[list[str]]:
        """Return the paths that exist, a portion at a time; REPORT_PROGRESS is called with `what`.

        It is called after what the caller has done with a portion.
        """
        files = Folder(self.address).files
        every = sorted(paths)
        for start in range(0, len(every), _PATHS_LOOKED_UP):
            chosen = every[start : start + _PATHS_LOOKED_UP]
            infos = files.get_file_info(chosen)
            yield [info.path for info in infos if info.type == fs.FileType.File]
            REPORT_PROGRESS.get()(what, start + len(chosen), len(every))

    def _create(
        self, actions: list[AddAction], schema: pa.Schema, properties: CommitProperties
    ) -> None:
        names = [n for n in self._statistics_columns if n in {*schema.names} - {*self.partitions}]
        configuration = {**_CONFIGURATION, _STATISTICS: ",".join(names)}
        with self.stream_errors():
            try:
                create_table_with_add_actions(
                    self.address,
                    _schema(schema),
                    actions,
                    partition_by=self.partitions,
                    configuration=configuration if names else _CONFIGURATION,
                    commit_properties=properties,
                )
            except DeltaError as error:
                if not DeltaTable.is_deltatable(self.address):
                    raise
                raise CommitFailedError(str(error)) from None  # another writer has created it
        self.reload()  # raises the epoch: delta-rs creates no table with properties of others

    def _add_columns(self, schema: pa.Schema) -> None:
        assert self._table is not None
        known = {field.name: field.type for field in self._table.schema().fields}
        changed = [field for field in _schema(schema).fields if known.get(field.name) != field.type]
        if not changed:
            return
        try:
            with self.stream_errors():
                self._table.alter.add_columns(changed)
        except SchemaMismatchError as error:
            raise OptionError(
                f"the table at {self.address} has other types of "
                f"{', '.join(field.name for field in changed)}: start the query with the options "
                "of before, or write to another folder",
                error,
            ) from None
        self.reload()

    def _opened(self) -> DeltaTable | None:
        with self.stream_errors():
            if not DeltaTable.is_deltatable(self.address):
                return None
            table = DeltaTable(self.address)
        self._require_readable(table)
        return table

    def _transaction(self, name: str) -> int | None:
        if self._table is None:
            return None
        with self.stream_errors():
            return self._table.transaction_version(name)

    @contextmanager
    def stream_errors(self) -> Iterator[None]:
        """Raise StreamError, with the remedy, for what delta-rs, Arrow and the storage raise."""
        try:
            yield
        except CommitFailedError as error:
            if "Unsupported table features" in str(error):
                raise StreamError(
                    f"the table at {self.address} has a feature of Delta with which it cannot be "
                    f"written here: {_DROP.format('feature')}",
                    error,
                ) from None
            self._fail_overtaken(error)
        except SchemaMismatchError:
            raise
        except (DeltaError, OSError, pa.ArrowException) as error:
            remedy = "correct the path or the access to it, or restore it if files are lost"
            if any(message in str(error) for message in FULL_DISK):
                remedy = "the disk is full. Free space, and start again; nothing is lost"
            raise StreamError(
                f"the table at {self.address} cannot be read or written: {remedy}", error
            ) from None

    def _fail_overtaken(self, error: object = None) -> NoReturn:
        """Read the commit that was faster than this object's, and raise StreamError."""
        self._table = self._opened()
        self._require_epoch()
        raise StreamError(
            f"the table at {self.address} has been written by another query, or by another start "
            "of this job: let only one of them write to a table",
            error,
        ) from None


def _with_rows(files: pa.Table, name: str, operator: str, value: Any) -> pa.Table:
    """Return the files that may have a row whose column compares so with a value."""
    sides = {"<": ("min.",), "<=": ("min.",), ">": ("max.",), ">=": ("max.",)}
    for side in sides.get(operator, ("min.", "max.")):
        if side + name in files.column_names:
            compare = pc.less_equal if side == "min." else pc.greater_equal
            matches = compare(files[side + name], pa.scalar(value))
            files = files.filter(pc.fill_null(matches, fill_value=True))
    return files


def _schema(schema: pa.Schema) -> Schema:
    """Return Delta's schema of columns, all of which may be null."""
    return Schema.from_arrow(pa.schema([field.with_nullable(True) for field in schema]))


def _removal(file: TableFile) -> RemoveAction:
    """Return what a commit says about a file that others with the same rows replace."""
    values = file.partition.items()
    texts = {name: None if value is None else str(value) for name, value in values}
    return RemoveAction(file.path, False, int(time.time() * 1000), file.size, texts)


def _action(part: PartFile, *, changes: bool = True) -> AddAction:
    """Return what a commit says about a new file; `changes` says whether its rows are new."""
    return AddAction(
        path=part.path,
        size=part.size,
        partition_values=dict(part.partition),
        modification_time=part.modified,
        data_change=changes,
        # delta-rs reads an escaped character of the last plane as another one.
        stats=json.dumps(part.stats, ensure_ascii=False),
    )
