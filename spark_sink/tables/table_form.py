"""The columns of a current table.

A table without a schema has the documents as JSON and as BSON, in the columns `fold.TABLE`. A
typed table has a column for each field of the documents, and the column RESCUED for what does not
fit. The names of its other columns begin with an underscore.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.events.slices import CODEC, UNREADABLE, Slice, decoded_documents, flattened
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.rows.extended_json import JsonColumns
from spark_sink.rows.inferred_schema import SeenTypes, extends, grown, is_no_column, paths_of
from spark_sink.rows.layouts import Values
from spark_sink.rows.typed_documents import RESCUED, InferredDocuments, TypedDocuments
from spark_sink.tables.fold import BASE, TABLE, with_key_columns
from spark_sink.tables.keyed_rows import DELETED
from spark_sink.tables.parquet_parts import WITH_STATISTICS
from spark_sink.tables.places import KEY_COLUMNS, KEY_RANGE, places_of

_DERIVED = ("namespace", "fullDocument")  # columns that a typed table does not have
_OWN = tuple(field for field in TABLE.fields if field.name not in _DERIVED)
_COMPARABLE = (StringType, ByteType, ShortType, IntegerType, LongType, DateType, TimestampType)
"""The types of key columns that can have statistics in Delta's log."""
_RESERVED = (*(f"_{field.name}" for field in _OWN), RESCUED, DELETED, KEY_RANGE)


@dataclass(frozen=True)
class TableForm:
    """The columns of a table.

    Args:
        document_schema: None for JSON and BSON.
        infers: whether columns are added and widened when documents need it.
        keeps_deleted: whether the row of a deleted document stays, with DELETED.
        flattens: whether the fields of documents in documents are columns of their own.
        keys: the fields of the documents that come first and have statistics.
    """

    document_schema: StructType | None = None
    infers: bool = False
    keeps_deleted: bool = False
    flattens: bool = False
    keys: tuple[str, ...] = ("_id",)

    @classmethod
    def of(cls, schema: StructType, statistics_columns: Sequence[str] = ()) -> TableForm:
        """Return the form of a table with this schema.

        `statistics_columns` are the columns with statistics in its commits.
        """
        fields = [field for field in schema.fields if field.name not in _RESERVED]
        is_typed = RESCUED in schema.names
        return cls(
            StructType(fields) if is_typed else None,
            keeps_deleted=DELETED in schema.names,
            keys=tuple(name for name in statistics_columns if name not in _RESERVED),
        )

    def checked(self) -> TableForm:
        """Return this form. Raises ValueError for a schema that cannot be a table's columns."""
        if self.document_schema is None or not self.document_schema.fields:
            raise ValueError("the schema names no field")
        TypedDocuments(self.document_schema)
        allowed = {*paths_of(grown(StructType([]), self.document_schema, _RESERVED))}
        for path in paths_of(self.document_schema):
            if path not in allowed or is_no_column(path[-1]):
                raise ValueError(
                    f"{'.'.join(path)!r} cannot be a column: a name must not contain spaces, dots, "
                    "or any of ,;{}()=. It must differ from all other names, also from those of "
                    "the table's own columns, by more than its case"
                )
        return self

    @property
    def is_typed(self) -> bool:
        """Whether the table has a column for each field of the documents."""
        return self.document_schema is not None

    @property
    def spark_schema(self) -> StructType:
        """The columns without KEY_RANGE, structs last as in a DeltaLog, as a schema of Spark."""
        marks = [StructField(RESCUED, StringType())] if self.is_typed else []
        marks += [StructField(DELETED, BooleanType())] if self.keeps_deleted else []
        if self.document_schema is None:
            return StructType([*TABLE.fields, *marks])
        own = (StructField(f"_{field.name}", field.dataType) for field in _OWN)
        fields = (*self.document_schema.fields, *marks, *own)
        return StructType(sorted(fields, key=lambda each: isinstance(each.dataType, StructType)))

    @property
    def file_schema(self) -> pa.Schema:
        """The columns, KEY_RANGE last, as a schema of Arrow."""
        return arrow_schema(self.spark_schema).append(pa.field(KEY_RANGE, pa.string()))

    @property
    def statistics_columns(self) -> Sequence[str]:
        """The columns whose least and greatest values are in the commits."""
        if self.document_schema is None:
            return WITH_STATISTICS
        kinds = {field.name: type(field.dataType) for field in self.document_schema.fields}
        keys = [name for name in self.keys if kinds.get(name) in _COMPARABLE]
        return [*keys, *(f"_{field.name}" for field in _OWN if field.name in WITH_STATISTICS)]

    @property
    def base_columns(self) -> tuple[str, ...]:
        """The names of the columns BASE in the table, and of DELETED if the table has it."""
        names = (*BASE, DELETED) if self.keeps_deleted else BASE
        return tuple(map(self.column, names))

    def places_of(self, rows: pa.Table) -> pa.Array:
        """Return the places of rows of the table."""
        return places_of(rows, *map(self.column, KEY_COLUMNS))

    def column(self, name: str) -> str:
        """Return the name that a column of TABLE has in the table."""
        return f"_{name}" if self.is_typed and name in TABLE.fieldNames() else name

    def grown(self, wanted: StructType) -> TableForm:
        """Return the form of a table that gets documents of another schema as well."""
        assert self.document_schema is not None
        if not self.document_schema.fields:
            known = {field.name: field for field in wanted.fields}
            names = dict.fromkeys([*(name for name in self.keys if name in known), *known])
            wanted = StructType([known[name] for name in names])
        return replace(self, document_schema=grown(self.document_schema, wanted, _RESERVED))

    def rewrites(self, before: TableForm) -> bool:
        """Return whether all files of a table of the form `before` must be written again.

        All readers return null for a column, or a field of a struct, that a file lacks. Only some
        of them accept other differences between a file and its table.
        """
        if self.document_schema is None or before.document_schema is None:
            return self.document_schema != before.document_schema
        wide, narrow = self.document_schema, before.document_schema
        return not extends(wide, narrow) or not (self.infers or extends(narrow, wide))


class FormedRows:
    """Makes the rows of a form, without KEY_RANGE, in one task."""

    def __init__(self, form: TableForm) -> None:
        self._form = form
        self._schema = arrow_schema(form.spark_schema)
        self._seen = SeenTypes()
        self._documents: TypedDocuments | None = None
        self.changed = NO_ROWS
        """What the checksum gains because columns of documents were made again."""
        self.none = self._schema.empty_table()
        """No row."""
        self._fields: list[str] = []
        if form.document_schema is not None:
            self._fields = form.document_schema.names
            kind = InferredDocuments if form.infers else TypedDocuments
            self._documents = kind(form.document_schema)

    @property
    def wanted(self) -> StructType | None:
        """The schema that the documents need, if the form infers one and its own is too narrow."""
        kind = self._seen.type()
        if not self._form.infers or not isinstance(kind, StructType):
            return None
        wanted = self._form.grown(kind).document_schema
        return None if wanted == self._form.document_schema else wanted

    def names(self, names: Collection[str]) -> list[str]:
        """Return which columns of a file to read."""
        return [name for name in self._schema.names if name in names]

    def from_file(self, rows: pa.Table, *, again: bool = False) -> pa.Table:
        """Return rows of a file; with `again` the columns of documents are made again."""
        known = {field.name: field.type for field in rows.schema}
        kinds = {name: self._schema.field(name).type for name in self._fields}
        again = again or any(known.get(name, kind) != kind for name, kind in kinds.items())
        made = self._made(rows[self._form.column("document")]) if again else {}
        missing = {n: pa.nulls(rows.num_rows, kinds[n]) for n in kinds.keys() - {*known}}
        columns = {**{name: rows[name] for name in known}, **missing, **made}
        table = pa.table([columns[name] for name in self._schema.names], self._schema.names)
        table = table.cast(self._schema)
        if again:
            self.changed += Checksum.of(table) - Checksum.of(rows)
        return table

    def from_fold(self, rows: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return rows of FOLDED in the form, and by index why some of them cannot be read.

        The rows given have no problem of their own.
        """
        try:
            return self._from_fold(rows), {}
        except UNREADABLE as error:
            if rows.num_rows == 1:
                return self.none, {0: str(error)}
        half = rows.num_rows // 2
        first, problems = self.from_fold(rows.slice(0, half))
        second, more = self.from_fold(rows.slice(half))
        problems |= {half + index: problem for index, problem in more.items()}
        return pa.concat_tables([first, second]), problems

    def _from_fold(self, rows: pa.Table) -> pa.Table:
        made, rows = self._made(rows["document"]), with_key_columns(rows)
        columns = {self._form.column(name): rows[name] for name in rows.schema.names} | made
        table = pa.table([columns[name] for name in self._schema.names], self._schema.names)
        return table.cast(self._schema)

    def _made(self, column: pa.ChunkedArray) -> dict[str, pa.Array]:
        """Return the columns of documents: their JSON, or their fields with what does not fit."""
        if self._documents is None:
            values = Values.of(column.combine_chunks())
            return {"fullDocument": JsonColumns().texts(values)}
        documents: list[bytes] = column.to_pylist()
        alike: dict[int, dict[bytes, Slice]] = {}
        if self._form.flattens:
            pairs = list(map(flattened, documents))
            documents = [document for document, _ in pairs]
            alike = {index: fields for index, (_, fields) in enumerate(pairs) if fields}
        structs, misfits = self._documents.read_all(documents)
        rescued: list[str | None] = [None] * len(documents)
        for index in {*misfits, *alike}:
            rescued[index] = self._documents.misfits(documents[index], alike.get(index, {}))
        if self._form.infers:
            for document in decoded_documents([documents[index] for index in misfits], CODEC):
                self._seen.add(document)
        kind = pa.struct([self._schema.field(name) for name in self._fields])
        fields = zip(self._fields, pa.array(structs, kind).flatten(), strict=True)
        return {**dict(fields), RESCUED: pa.array(rescued, pa.string())}
