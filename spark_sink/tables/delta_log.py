"""The commits of a Delta table, through delta-rs: files, and what a version knows beside them.

A commit is the file of the table's log that moves rows and position together. It has the numbers of
batches as Delta's application transactions, so a repeated batch is recognised by the table itself.
delta-rs accepts a transaction's number again, and lower ones, so callers ask `has` first. It does
not notice a writer that only adds files to the folders that another one replaces; the number of the
table's own application `mergerouter` therefore grows with each replacement.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    Transaction,
    create_table_with_add_actions,
)
from pyarrow import fs

from spark_sink.errors import FULL_DISK, OptionError, StreamError
from spark_sink.folders import absolute, open_folder
from spark_sink.tables.commits import (
    action_of,
    compacted,
    positions_of,
    properties_of,
    require_no_restore,
    restored_error,
)
from spark_sink.tables.parquet_parts import COMPARED

_REPLACEMENTS = "mergerouter"
"""The application whose number grows with replacements."""
_CONFIGURATION = {
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.logRetentionDuration": "interval 1 days",
}
"""Of a new table: how long files are kept for their readers, and how long commits.

Each commit lists the log, which takes 2 µs a commit that it has on a local disk.
"""
_NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
"""With the cleanup, each commit asks for the age of each commit before it."""
_COMMITS_PER_CLEANUP = 100
_STATISTICS = "delta.dataSkippingStatsColumns"
"""Of a table: the columns of which commits have statistics."""
_ORPHAN_HOURS = 7 * 24
"""The age at which a file that no commit names is deleted."""
_VERSIONS_READ = (1, 20, None)
"""How many commits are read to find the newest one with a position; None for all."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: the id of its query, its number, and the offset at its end.

    `verified` is what is known of the table before it.
    """

    query: str
    number: int
    offset: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> dict[str, Any]:
        """What a commit says about the batch."""
        known = {"verified": dict(self.verified)} if self.verified else {}
        return {"query": self.query, "batch": self.number, "offset": dict(self.offset), **known}


class DeltaLog:
    """The newest version of the table at an address, a path or a URI that delta-rs knows.

    The object stands for the version that it has read or committed last. Methods raise StreamError
    where another writer was faster or the storage fails.

    Args:
        partitions: the partition columns of a new table.
        compared: those with statistics in the commits of a new table.
    """

    def __init__(
        self, address: str, partitions: Sequence[str] = (), compared: Sequence[str] = COMPARED
    ) -> None:
        self.address = absolute(address)
        """The folder as a path or URI for Spark."""
        self._partitions = list(partitions)
        self._compared = compared
        self._table = self._opened()
        self._fixed: dict[str, Any] | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def version(self) -> int | None:
        """The number of the version; None if there is no table."""
        return None if self._table is None else int(self._table.version())

    @property
    def schema(self) -> dict[str, Any]:
        """The schema as JSON, which is Spark's, too."""
        assert self._table is not None
        found: dict[str, Any] = json.loads(self._table.schema().to_json())
        return found

    @property
    def compared(self) -> Sequence[str]:
        """The columns of which the commits have statistics."""
        if self._table is None:
            return self._compared
        names = self._table.metadata().configuration.get(_STATISTICS)
        return names.split(",") if names else []

    def compare(self, names: Sequence[str]) -> None:
        """Let the commits have statistics of these columns, which all files have.

        pyarrow's readers take a column without them for one that is null everywhere, unless the
        table says that it has none.
        """
        if self._table is None:
            self._compared = names
        elif set(names) != set(self.compared):
            with self._failures():
                self._table.alter.set_table_properties(
                    {_STATISTICS: ",".join(names)}, commit_properties=properties_of(self.position())
                )
            self.reload()

    def reload(self) -> bool:
        """Read the commits since the version, and return whether there were any.

        Raises StreamError if one of them has restored an older version.
        """
        before = self.version
        if self._table is None or before is None:
            self._table = self._opened()
            return self.exists
        with self._failures():
            self._table.update_incremental()
            later = self._table.version() - before
            require_no_restore(self.address, self._table.history(later) if later else [])
        return later > 0

    def require_whole(self) -> None:
        """Raise StreamError if an older version was restored: the numbers of its batches stay."""
        last = self.position()
        if "query" in last and self.has(Batch(last["query"], last["batch"] + 1)):
            raise restored_error(self.address)

    def has(self, batch: Batch) -> bool:
        """Return whether the table has the batch, or a later one of its query."""
        last = self._transaction(batch.query)
        return last is not None and last >= batch.number

    def position(self) -> dict[str, Any]:
        """Return what the newest commit of a batch says; empty if none does."""
        if self._fixed is not None:
            return self._fixed
        for limit in _VERSIONS_READ:  # others may have committed since, such as by an optimize
            for position in self.positions(limit).values():
                return position
        return {}

    def positions(self, limit: int | None = None) -> dict[int, dict[str, Any]]:
        """Return what the newest `limit` commits say, by version, without those of others.

        The newest is the first. Those that a restored version is without are left out.
        """
        if self._table is None:
            return {}
        with self._failures():
            commits = self._table.history(limit)
        return positions_of(commits)

    def at(self, version: int, position: Mapping[str, Any]) -> DeltaLog:
        """Return an older version to read, with what its commit says.

        Raises StreamError if its commit or one of its files has been deleted.
        """
        found = DeltaLog(self.address, self._partitions)
        assert found._table is not None
        found._fixed = dict(position)
        try:
            found._table.load_as_version(version)
        except DeltaError:
            complete = False
        else:
            files, folder = open_folder(self.address)
            paths = [f"{folder}/{each['path']}" for each in found.actions()]
            complete = all(each.type == fs.FileType.File for each in files.get_file_info(paths))
        if not complete:
            raise StreamError(
                f"files of version {version} of the table at {self.address} have been deleted: the "
                "table's property delta.deletedFileRetentionDuration says how long they are kept. "
                "Make the table of that time again with job rebuild --to"
            )
        return found

    def actions(self, chosen: pc.Expression | None = None) -> list[dict[str, Any]]:
        """Return what the log says about each file: a flat document, with its relative `path`.

        Files that have no row of a condition, by their statistics, may be left out.
        """
        if self._table is None:
            return []
        rows: list[dict[str, Any]] = pa.table(self._table.get_add_actions(True)).to_pylist()
        found = [{**row, "path": unquote(row["path"])} for row in rows]
        if chosen is None:
            return found
        fragments = self._table.to_pyarrow_dataset().get_fragments(filter=chosen)
        kept = {each.path for each in fragments}
        return [each for each in found if each["path"] in kept]

    def scan(
        self, columns: Sequence[str], chosen: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return columns of the rows that a condition selects, by the statistics of files first."""
        assert self._table is not None
        with self._failures():
            dataset = self._table.to_pyarrow_dataset()
            yield from dataset.scanner(columns=[*columns], filter=chosen).to_batches()

    def count(self) -> int:
        """Return the number of rows, by the statistics of files."""
        return sum(row["num_records"] or 0 for row in self.actions())

    def append(
        self,
        parts: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        batch: Batch,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Commit files with the rows of a batch.

        Args:
            parts: files that `parquet_parts` has written.
            schema: of all columns; new ones are added to the table. OptionError if others have
                changed their type.
            state: what the table's state says beside the batch, of the rows after it.
        """
        if self._table is not None:
            self._add_columns(schema)
        transactions = [Transaction(batch.query, batch.number)]
        self._write(parts, schema, properties_of({**(state or {}), **batch.position}, transactions))

    def replace(
        self,
        parts: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        position: Mapping[str, Any],
        batch: Batch | None = None,
        **partition: Collection[Any],
    ) -> None:
        """Commit files instead of those of the partitions with these values of one column.

        The same commit gives the table this schema.
        """
        transactions = [Transaction(_REPLACEMENTS, (self._transaction(_REPLACEMENTS) or 0) + 1)]
        if batch is not None:
            transactions.append(Transaction(batch.query, batch.number))
        filters = [(name, "in", [str(each) for each in v]) for name, v in partition.items() if v]
        if not filters and self._table is not None and _schema(schema) != self._table.schema():
            filters = [(name, "in", ["-"]) for name in self._partitions]  # which no file has
        self._write(parts, schema, properties_of(position, transactions), filters)

    def _write(
        self,
        parts: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        properties: CommitProperties,
        filters: Any = None,
    ) -> None:
        """Commit files, instead of those of the partitions that filters select."""
        actions = [action_of(part) for part in parts]
        if self._table is None:
            self._create(actions, schema, properties)
            return
        with self._failures():
            self._table.create_write_transaction(
                [*actions],
                "overwrite" if filters else "append",  # only the former changes the schema
                _schema(schema) if filters else self._table.schema(),
                self._partitions,
                partition_filters=filters or None,
                commit_properties=properties,
                post_commithook_properties=_NO_CLEANUP,
            )
        self.reload()
        if self._table.version() % _COMMITS_PER_CLEANUP == 0:
            with self._failures():
                self._table.cleanup_metadata()

    def compact(self) -> tuple[int, int]:
        """Replace small files by large ones; return their numbers, before and after."""
        assert self._table is not None
        before, said = self.actions(), properties_of(self.position())
        with self._failures():
            self._table.optimize.compact(compacted(before), commit_properties=said)
        self.reload()
        return len(before), len(self.actions())

    def vacuum(self, *, full: bool = False) -> None:
        """Delete the files that have been replaced longer ago than the table's retention.

        With `full`, it deletes also files of a week ago that no commit names: those of tasks that
        were interrupted or ran twice. A running batch may still commit younger ones.
        """
        assert self._table is not None
        with self._failures():
            said = properties_of(self.position())
            self._table.vacuum(dry_run=False, commit_properties=said)
            if full:
                self._table.vacuum(_ORPHAN_HOURS, dry_run=False, full=True, commit_properties=said)
        self.reload()

    def _create(
        self, actions: list[AddAction], schema: pa.Schema, properties: CommitProperties
    ) -> None:
        names = [n for n in self._compared if n in schema.names and n not in self._partitions]
        configuration = {**_CONFIGURATION, _STATISTICS: ",".join(names)}
        with self._failures():
            try:
                create_table_with_add_actions(
                    self.address,
                    _schema(schema),
                    actions,
                    partition_by=self._partitions,
                    configuration=configuration if names else _CONFIGURATION,
                    commit_properties=properties,
                )
            except DeltaError as error:
                if not DeltaTable.is_deltatable(self.address):
                    raise
                raise CommitFailedError(str(error)) from None  # another writer has created it
        self.reload()

    def _add_columns(self, schema: pa.Schema) -> None:
        assert self._table is not None
        known = {each.name: each.type for each in self._table.schema().fields}
        changed = [each for each in _schema(schema).fields if known.get(each.name) != each.type]
        if not changed:
            return
        try:
            with self._failures():
                self._table.alter.add_columns(
                    changed, commit_properties=properties_of(self.position())
                )
        except SchemaMismatchError as error:
            raise OptionError(
                f"the table at {self.address} has other types of "
                f"{', '.join(each.name for each in changed)}: start the query with the options of "
                "before, or write to another folder",
                error,
            ) from None
        self.reload()

    def _opened(self) -> DeltaTable | None:
        with self._failures():
            return DeltaTable(self.address) if DeltaTable.is_deltatable(self.address) else None

    def _transaction(self, name: str) -> int | None:
        if self._table is None:
            return None
        with self._failures():
            return self._table.transaction_version(name)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise StreamError(
                f"the table at {self.address} has been written by another query: let only one "
                "query write to a table",
                error,
            ) from None
        except SchemaMismatchError:
            raise
        except (DeltaError, OSError) as error:
            remedy = "correct the path or the access to it, or restore it if files are lost"
            if any(each in str(error) for each in FULL_DISK):
                remedy = "the disk is full. Free space, and start again; nothing is lost"
            raise StreamError(
                f"the table at {self.address} cannot be read or written: {remedy}", error
            ) from None


def _schema(schema: pa.Schema) -> Schema:
    """Return Delta's schema of columns, all of which may be null."""
    return Schema.from_arrow(pa.schema([each.with_nullable(True) for each in schema]))
