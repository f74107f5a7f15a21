"""Messages of many events together: the same as `Maker` makes of each, at less cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shard_client.bson.values import ARRAY, DATE, DOCUMENT, INT32, INT64, TIMESTAMP
from spark_sink.debezium.envelope import EventParts
from spark_sink.debezium.messages import (
    DOCUMENTS,
    NO_ORDER,
    Made,
    Maker,
    Namespace,
    Times,
    is_incremental,
    times_at,
)
from spark_sink.debezium.text_columns import JavaColumns
from spark_sink.events.header import OPERATIONS, READ
from spark_sink.events.slices import OBJECT_ID_KEY, Slice
from spark_sink.rows.layouts import Field, JoinedEvents, Layout, layouts_of
from spark_sink.rows.text_columns import Pieces, chosen, combined, joined_text, values_of

_EMPTY_ARRAY = 5  # bytes
_DESCRIPTION = {b"updatedFields": DOCUMENT, b"removedFields": ARRAY, b"truncatedArrays": ARRAY}
_Numbers = NDArray[np.int64]


class MessageColumns:
    """Makes columns of messages of events, as `maker` makes each."""

    def __init__(self, maker: Maker) -> None:
        self._options, self._clock = maker.options, maker.clock
        self._maker = maker
        self._strict = JavaColumns(self._maker.strict)
        self._identifier = JavaColumns(self._maker.identifier)
        self._updated = JavaColumns(self._maker.updated)

    def of_events(self, events: Sequence[bytes]) -> Made:
        """Return the messages of events, in their order. Raises InvalidBSON."""
        joined = JoinedEvents(events)
        layouts, left = layouts_of(joined)
        parts: list[Made] = []
        others = [left]
        for layout in layouts:
            of_layout = self._of_layout(joined, layout)
            if of_layout is None:
                others.append(layout.rows)
            else:
                parts += of_layout
        alone = np.concatenate(others)
        rows_alone, places, columns = self._maker.of_events([events[i] for i in alone.tolist()])
        parts.append(
            Made(alone[np.array(rows_alone, np.int64)], np.array(places, np.int64), columns)
        )
        rows, places = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        columns = [
            pa.concat_arrays(each) for each in zip(*(part.columns for part in parts), strict=True)
        ]
        order = np.lexsort((places, rows))
        taken = pa.array(order)
        return Made(rows[order], places[order], [column.take(taken) for column in columns])

    def _of_layout(self, joined: JoinedEvents, layout: Layout) -> list[Made] | None:
        """Return the messages of a layout's events; None if each must be looked at by itself."""
        fields, size = layout.fields, len(layout.rows)
        slices, codes = layout.distinct(b"operationType")
        kinds = [each.text() for each in slices]
        letters = [OPERATIONS.get(kind) for kind in kinds]
        times = self._times(layout, is_read=kinds[0] == READ)
        if None in letters or times is None or (READ in kinds and len(kinds) > 1):
            return None
        now = self._clock() // 1_000_000
        namespaces = self._namespaces(layout)
        key = joined_text(['{"id":"', *self._keys(joined, fields[b"documentKey"]), '"}'], size)
        session, number, transaction = self._transactions(joined, layout)
        before, after = (self._document(joined, fields.get(name)) for name in DOCUMENTS)
        change = EventParts(
            before=before,
            after=after,
            description=self._descriptions(joined, fields.get(b"updateDescription")),
            ms=_text(times.ms),
            snapshot=f'"{times.snapshot}"',
            database=namespaces.database,
            us=_text(times.us),
            ns=_text(times.ns),
            collection=namespaces.collection,
            order=_text(times.order),
            session=session,
            number=number,
            wall=times.wall,
            op=['"', _taken(letters, codes), '"'],
            now=str(now),
        )
        pieces = self._maker.envelope.pieces(change)
        topic, name = (_column(each, size) for each in (namespaces.topic, namespaces.name))
        columns = [topic, key, joined_text(pieces, size), transaction, name, pa.array(times.ms)]
        made = [Made(layout.rows, np.zeros(size, np.int64), columns)]
        deleted = np.array([letter == "d" for letter in letters])[codes]
        if self._options.tombstones and deleted.any():
            which, count = pa.array(deleted), int(deleted.sum())
            nothing = pa.nulls(count, pa.string())
            columns = [topic.filter(which), key.filter(which), nothing, nothing, nothing]
            columns.append(pa.array(np.zeros(count, np.int64)))
            made.append(Made(layout.rows[deleted], np.ones(count, np.int64), columns))
        return made

    def _document(self, joined: JoinedEvents, field: Field | None) -> Pieces:
        if field is None or field.kind != DOCUMENT:
            return ["null"]
        return ['"', *self._strict.values(joined, field), '"']

    def _keys(self, joined: JoinedEvents, field: Field) -> Pieces:
        """Return the texts of the `_id` of document keys."""
        keys = joined.within(field.starts, field.stops)
        if joined.begin_with(OBJECT_ID_KEY, field.starts).all():
            starts = field.starts + len(OBJECT_ID_KEY)
            return ['{\\"$oid\\": \\"', joined.hexadecimal(starts, 12), '\\"}']
        layouts, left = layouts_of(keys)
        parts = [
            (each.rows, joined_text(self._identifier.values(keys, each.fields[b"_id"]),
                                    len(each.rows)))
            for each in layouts
        ]  # fmt: skip
        if len(left) or not parts:
            rest = [keys.data[keys.starts[row] : keys.ends[row]] for row in left.tolist()]
            texts = [self._maker.key(key)[len('{"id":"') : -len('"}')] for key in rest]
            parts.append((left, pa.array(texts, pa.string())))
        return [combined(len(keys.ends), parts)]

    def _descriptions(self, joined: JoinedEvents, field: Field | None) -> Pieces:
        """Return the descriptions of updates, together where no field or element was removed."""
        if field is None or field.kind != DOCUMENT:
            return ["null"]
        described = joined.within(field.starts, field.stops)
        layouts, left = layouts_of(described)
        parts, others = [], [left]
        for layout in layouts:
            common = np.ones(len(layout.rows), np.bool_)
            for name, each in layout.fields.items():
                if _DESCRIPTION.get(name, ARRAY) == ARRAY:
                    common &= each.stops - each.starts == _EMPTY_ARRAY
            updated = layout.fields.get(b"updatedFields")
            if {*layout.fields} - {*_DESCRIPTION} or updated is None or updated.kind != DOCUMENT:
                common[:] = False
            if updated is not None and common.any():
                texts = self._updated.values(described, chosen(updated, common))
                pieces = ['{"removedFields":null,"updatedFields":"', *texts]
                whole = joined_text([*pieces, '","truncatedArrays":null}'], int(common.sum()))
                parts.append((layout.rows[common], whole))
            others.append(layout.rows[~common])
        rest = np.concatenate(others)
        values = values_of(joined, Field(DOCUMENT, field.starts[rest], field.stops[rest]))
        alone = [self._maker.description(Slice(DOCUMENT, value)) for value in values]
        return [combined(len(field.starts), [*parts, (rest, pa.array(alone, pa.string()))])]

    def _transactions(
        self, joined: JoinedEvents, layout: Layout
    ) -> tuple[Pieces, Pieces, pa.Array]:
        """Return the sessions, the transactions' numbers, and their ids."""
        session, number = layout.fields.get(b"lsid"), layout.fields.get(b"txnNumber")
        size = len(layout.rows)
        if session is None or number is None:
            return ["null"], ["null"], pa.nulls(size, pa.string())
        texts = joined_text(self._strict.values(joined, session), size)
        numbers = layout.integers(b"txnNumber", "<i4" if number.kind == INT32 else "<i8")
        number_texts = _text(numbers)
        name = joined_text(['"', texts, ":", number_texts, '"'], size)
        return ['"', texts, '"'], [number_texts], name

    def _times(self, layout: Layout, *, is_read: bool) -> Times | None:
        """Return the times of the events; None where they have unusual types."""
        fields, size = layout.fields, len(layout.rows)
        time, wall, number = map(fields.get, (b"clusterTime", b"wallTime", b"txnNumber"))
        if time is None or time.kind != TIMESTAMP:
            return None
        if number is not None and number.kind not in (INT32, INT64):
            return None
        seconds = layout.integers(b"clusterTime", "<u4", 4)
        order = layout.integers(b"clusterTime", "<u4")
        if is_read and b"signal" in fields:
            found = {is_incremental({b"signal": each}) for each in layout.distinct(b"signal")[0]}
            if len(found) > 1:
                return None
            if found == {True}:
                return times_at(seconds * 1000, "null", order, "incremental")
        if is_read:
            now = 0 if self._options.is_old else self._clock()
            ms, us, ns, nothing = (
                np.full(size, each) for each in (now // 1_000_000, now // 1000, now, NO_ORDER)
            )
            return Times(ms, us, ns, "null", nothing, "true")
        walls = None
        if wall is not None and wall.kind == DATE:
            walls = layout.integers(b"wallTime", "<i8")
        times = seconds * 1000 if walls is None or self._options.is_old else walls
        return times_at(times, "null" if walls is None else _text(walls), order, "false")

    def _namespaces(self, layout: Layout) -> Namespace:
        slices, codes = layout.distinct(b"ns")
        found = [self._maker.namespace(each.value) for each in slices]
        return Namespace(*(_taken(names, codes) for names in zip(*found, strict=True)))


def _text(numbers: _Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _taken(texts: Sequence[str | None], codes: _Numbers) -> Any:
    """Return for each code the text of that index: one text, if there is only one."""
    if len(texts) == 1:
        return texts[0]
    return pa.array(texts, pa.string()).take(pa.array(codes))


def _column(texts: str | pa.Array, size: int) -> pa.Array:
    return joined_text([texts], size)
