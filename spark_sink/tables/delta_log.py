"""The commits of a Delta table, through delta-rs: files, and what is recorded beside them.

A commit is a file of the table's log, and changes rows and state together (`state_files`). It
has the number of a batch as one of Delta's application transactions, by which the table recognises
a repeated batch. delta-rs accepts an equal or lower number, so callers ask `has` first. If two
commits that change the state were planned from one version, delta-rs refuses one of them.

A start of a job has an epoch, a number that it writes to the table's property EPOCH. A later start
raises it by a commit of metadata. On any file system, Delta refuses all commits that were planned
before such a commit. So no commit of an earlier start can succeed after that.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from spark_sink.console import say
from spark_sink.errors import OptionError, StreamError
from spark_sink.folders import Folder, absolute
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.parquet_parts import WITH_STATISTICS, PartFile, Parts, TableFile, numbered
from spark_sink.tables.state_files import (
    APPLICATION,
    RESTORE,
    STATE,
    clean_states,
    restored_error,
    write_state,
)
from spark_sink.tables.table_state import Batch, TableState
from spark_sink.tables.table_version import DROP_FEATURE, STATISTICS, TableVersion, existing_files

EPOCH = "mergerouter.epoch"
"""The property of a table with the number of the start that may write to it."""
_FILES_KEPT, _COMMITS_KEPT = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_NEW_PROPERTIES = {_FILES_KEPT: "interval 1 hours", _COMMITS_KEPT: "interval 1 days"}
"""How long a new table keeps replaced files for their readers, and how long commits.

Each commit lists the log, which takes 2 µs for every commit in it on a local disk.
"""
_DAY = 24 * 3600
_NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
"""With the cleanup, each commit would look up the age of every commit before it."""
_COMMITS_PER_CLEANUP, _COMMITS_PER_VACUUM = 100, 20
"""After how many commits expired ones are deleted, and files that commits have replaced."""
_ORPHAN_HOURS = 7 * 24
"""The age at which a file that no commit names is deleted."""
_EPOCHS = 2**40
"""The most by which a new epoch exceeds the last one, at random: so those of two starts differ."""
_ATTEMPTS = 10
"""How often a table's epoch is raised if other commits are faster."""
_EXCHANGES = 100
"""How often files are exchanged if other commits are faster."""
_REARRANGING = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
"""The operations of commits that keep all rows, and the partitions that they are in."""

_PartitionFilters = Sequence[tuple[str, str, list[str]]]

_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
"""What delta-rs 1.6 reads as other characters in a path, or refuses."""


class DeltaLog(TableVersion):
    """The newest version of the table at an address, a path or a URI that delta-rs knows.

    The object stands for the version that it has read or committed last. Methods raise StreamError
    where another writer was faster or the storage fails. Raises OptionError for a path that
    delta-rs would misread.

    Args:
        partitions: the partition columns of a new table.
        epoch: of the start that writes to it; 0 for a writer that raises no epoch.
    """

    def __init__(
        self,
        address: str,
        partitions: Sequence[str] = (),
        *,
        epoch: int = 0,
    ) -> None:
        super().__init__(absolute(address), None)
        if "://" not in self.address and _MISREAD.search(self.address):
            raise OptionError(
                f"the folder {self.address} cannot have Delta tables: its path has a backslash, a "
                "line break, or a percent sign before two hexadecimal digits. Use another folder"
            )
        self._new_partitions = list(partitions)
        self._epoch = epoch
        self._deleted: set[str] = set()
        self._open()

    @property
    def partitions(self) -> list[str]:
        """The partition columns."""
        return super().partitions if self.exists else self._new_partitions

    def keep_files(self, seconds: float) -> None:
        """Keep replaced files for `seconds`, and commits for as long, but at least for a day.

        If another commit is faster, nothing changes until the next call.
        """
        times = {_FILES_KEPT: seconds, _COMMITS_KEPT: max(seconds, _DAY)}
        wanted = {name: f"interval {duration:.0f} seconds" for name, duration in times.items()}
        if not self.exists or self.properties.items() >= wanted.items():
            return
        with self.stream_errors(), suppress(CommitFailedError):
            self._set_properties(wanted)
        self.reload()

    def _set_properties(self, properties: Mapping[str, str]) -> None:
        assert self._table is not None
        self._table.alter.set_table_properties({**properties}, raise_if_not_exists=False)

    def reload(self) -> bool:
        """Read the commits after the version, and return whether there were any.

        Raises StreamError if one of them restored an older version, or comes from a later start of
        the job.
        """
        before = self.version
        self._update()
        self._take_epoch()
        return self.version != before

    def _open(self) -> None:
        """Read the newest version, if there is a table."""
        with self.stream_errors():
            is_table = DeltaTable.is_deltatable(self.address)
            self._table = DeltaTable(self.address) if is_table else None
        self.require_readable()

    def _update(self) -> None:
        """Read later commits."""
        if self._table is None:
            self._open()
            return
        with self.stream_errors():
            before = self._table.version()
            self._table.update_incremental()
            later = self._table.version() - before
            commits = self._table.history(later) if later > 0 else ()
        if any(commit.get("operation") == RESTORE for commit in commits):
            raise restored_error(self.address)
        self.require_readable()

    @property
    def epoch(self) -> int:
        """The epoch of the version; 0 if no start has raised it."""
        return int(self.properties.get(EPOCH, 0))

    def later_epoch(self) -> int:
        """Return an epoch for a start that follows the one that writes to the table now."""
        return self.epoch + 1 + secrets.randbelow(_EPOCHS)

    def _take_epoch(self) -> None:
        """Give the table this start's epoch. Raises StreamError if it has a later one."""
        for _ in range(_ATTEMPTS):
            if not self.exists or self._epoch in (0, self.epoch):
                return
            self._require_epoch()
            # The next attempt tells who was faster.
            with self.stream_errors(), suppress(CommitFailedError):
                self._set_properties({EPOCH: str(self._epoch)})
            self._update()
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
            if self.exists:
                self._add_columns(schema)
            checksum = sum((part.checksum for part in parts), self.state().checksum)
            self._write(parts, schema, TableState(checksum=checksum, batch=batch))

    def append_rows(self, rows: pa.Table, batch: Batch) -> None:
        """Append rows with the number of the batch; see `append`."""
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
        statistics_columns: Sequence[str] = WITH_STATISTICS,
    ) -> None:
        """Commit files instead of those whose partition is one of `replaced`.

        The same commit sets the schema and the state. Before it, the table's property says which
        columns have statistics: of `statistics_columns` those that have had some, and new ones, or
        those of another type, which no file keeps. Of others, pyarrow's readers would assume that
        they are null everywhere.
        """
        if self.exists:
            before, known = {*self.statistics_columns}, arrow_schema(self.schema)
            kinds = {field.name: field.type for field in known}
            new = {field.name for field in schema if field.type != kinds.get(field.name)}
            names = [name for name in statistics_columns if name in before | new]
            if before != {*names}:
                planned = self.version
                with self.stream_errors():
                    self._set_properties({STATISTICS: ",".join(names)})
                if not self._follows(planned, _REARRANGING | {"SET TBLPROPERTIES"}):
                    self._fail_overtaken()
        filters = [(self.partitions[0], "in", sorted(replaced))] if replaced else []
        if not filters and self._table is not None and _schema(schema) != self._table.schema():
            filters = [(name, "in", ["-"]) for name in self.partitions]  # which no file has
        self._write(parts, schema, state, filters, statistics_columns)
        if self.version and self.version % _COMMITS_PER_VACUUM == 0:
            with self.clean_up():
                self.vacuum()

    def _write(
        self,
        parts: Sequence[PartFile],
        schema: pa.Schema,
        state: TableState,
        filters: _PartitionFilters = (),
        statistics_columns: Sequence[str] = WITH_STATISTICS,
    ) -> None:
        """Commit files and a state, instead of the files that filters of partitions select.

        A new table declares `statistics_columns`.
        """
        actions = [_action(part) for part in parts]
        with self.stream_errors():
            number = write_state(self.address, state)
        transactions = [Transaction(APPLICATION, number)]
        if state.batch.query:
            transactions.append(Transaction(state.batch.query, state.batch.number))
        # delta-rs would commit beside a compaction of the files that it replaces.
        retries = 0 if filters else None
        properties = CommitProperties({STATE: state.document}, retries, transactions)
        if self._table is None:
            self._create(actions, schema, properties, statistics_columns)
            return
        with self.stream_errors():
            while True:
                try:
                    self._commit(actions, properties, schema if filters else None, filters)
                except CommitFailedError:
                    if filters and self._follows(self.version, _REARRANGING):
                        continue
                    raise
                break
        self._known_state = number, state
        self.reload()
        if self._table.version() % _COMMITS_PER_CLEANUP == 0:
            with self.clean_up():
                self._table.cleanup_metadata()
                clean_states(self.address, number)

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        properties: CommitProperties,
        schema: pa.Schema | None = None,
        filters: _PartitionFilters = (),
    ) -> None:
        """Commit actions, and with filters a schema; see `_write`. Raises CommitFailedError."""
        assert self._table is not None
        self._table.create_write_transaction(
            [*actions],
            "overwrite" if filters else "append",  # only the former changes the schema
            self._table.schema() if schema is None else _schema(schema),
            self.partitions,
            partition_filters=[*filters] or None,
            commit_properties=properties,
            post_commithook_properties=_NO_CLEANUP,
        )

    def _follows(self, before: int | None, operations: Set[str]) -> bool:
        """Read the newest version; return whether only `operations` have led to it from `before`.

        It is another one than `before`. Raises StreamError as `reload` does.
        """
        self.reload()
        assert self._table is not None
        later = self._table.version() - (before or 0)
        names = {commit["operation"] for commit in self._table.history(later)} if later else {""}
        return names <= operations

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
            with self.stream_errors(), suppress(CommitFailedError):
                self._commit([*actions, *removed], CommitProperties(max_commit_retries=0))
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
            what = f"old files of {self.name} deleted"
            for old in existing_files(self.address, undeleted, what):
                Folder(self.address).remove(*(file.path for file in old))
                count += len(old)
        self._deleted = removed
        return count

    @contextmanager
    def clean_up(self) -> Iterator[None]:
        """Print a failure to delete what is not read any more: a later commit tries it again."""
        try:
            with self.stream_errors():
                yield
        except StreamError as error:
            say(f"the table {self.name} is not cleaned up; the job continues: {error}")

    def _orphans(self, table: DeltaTable) -> list[str]:
        """Return old files that are not in the version, also those that no commit names."""
        try:
            return table.vacuum(_ORPHAN_HOURS, full=True)
        except DeltaError as error:
            if "Invalid retention period" not in str(error):
                raise
            return table.vacuum(full=True)  # the table keeps files for longer than that

    def _create(
        self,
        actions: list[AddAction],
        schema: pa.Schema,
        properties: CommitProperties,
        statistics_columns: Sequence[str],
    ) -> None:
        names = [n for n in statistics_columns if n in {*schema.names} - {*self.partitions}]
        statistics = {STATISTICS: ",".join(names)} if names else {}
        with self.stream_errors():
            try:
                create_table_with_add_actions(
                    self.address,
                    _schema(schema),
                    actions,
                    partition_by=self.partitions,
                    configuration={**_NEW_PROPERTIES, **statistics},
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
        with self.stream_errors():
            try:
                self._table.alter.add_columns(changed)
            except SchemaMismatchError as error:
                raise OptionError(
                    f"the table at {self.address} has other types of "
                    f"{', '.join(field.name for field in changed)}: start the query with the "
                    "options of before, or write to another folder",
                    error,
                ) from None
        self.reload()

    @contextmanager
    def stream_errors(self) -> Iterator[None]:
        """Raise StreamError, with the remedy, also where another writer was faster."""
        with super().stream_errors():
            try:
                yield
            except CommitFailedError as error:
                if "Unsupported table features" in str(error):
                    raise StreamError(
                        f"the table at {self.address} has a feature of Delta with which it cannot "
                        f"be written here: {DROP_FEATURE.format('feature')}",
                        error,
                    ) from None
                self._fail_overtaken(error)

    def _fail_overtaken(self, error: object = None) -> NoReturn:
        """Read the commit that was faster than this object's, and raise StreamError."""
        self._open()
        self._require_epoch()
        raise StreamError(
            f"the table at {self.address} has been written by another query, or by another start "
            "of this job: let only one of them write to a table",
            error,
        ) from None


def _schema(schema: pa.Schema) -> Schema:
    """Return Delta's schema of columns, all of which may be null.

    Structs come last: delta-rs 1.6 returns no statistics of the columns after a struct without any.
    """
    ordered = sorted(schema, key=lambda field: pa.types.is_struct(field.type))
    return Schema.from_arrow(pa.schema([field.with_nullable(True) for field in ordered]))


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
