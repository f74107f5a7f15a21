"""Random changes of collections, their batches in a current table, and kills at each step."""

import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from shard_client.bson.resume_token import high_water_mark
from spark_sink.dataclass_json import from_json, to_json
from spark_sink.rows.checksum import Checksum
from spark_sink.tables import current_table, range_files, staged_changes
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.staged_changes import CHANGE_COLUMNS, ChangeReport, ChangeStage
from spark_sink.tables.table_state import Batch

DATABASE = "shop"


Documents = dict[tuple[str, int], dict[str, Any]]


class RandomChanges:
    """Makes events at random, and keeps the collections that they result in."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.collections: Documents = {}
        self.number = 0

    def changes(self, count: int, keys: int = 300) -> list[dict[str, Any]]:
        """Return events of single documents."""
        return [self._change(self.chance.randrange(keys)) for _ in range(count)]

    def change(self, number: int, **fields: Any) -> dict[str, Any]:
        """Return the event of a document's replacement."""
        self.collections["a", number] = {"_id": number, **fields}
        return self._event("replace", "a", number, fullDocument=self.collections["a", number])

    def snapshot(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of a snapshot of collections, and its end."""
        time = Timestamp(1_700_000_000, self.number)
        end = self._token()
        rows = [
            self._event("read", name, number, end, fullDocument=document)
            for (name, number), document in self.collections.items()
            if name in names
        ]
        read = [{"db": DATABASE, "coll": name} for name in names]
        document = {"clusterTime": time, "readUntil": time, "collections": read}
        return [*rows, self._event("snapshotEnd", "", None, end, **document)]

    def drop(self, name: str) -> dict[str, Any]:
        for place in [each for each in self.collections if each[0] == name]:
            del self.collections[place]
        return self._event("drop", name, None)

    def rename(self, name: str, to: str) -> dict[str, Any]:
        self.collections = {
            (to if each == name else each, number): document
            for (each, number), document in self.collections.items()
            if each != to
        }
        return self._event("rename", name, None, to={"db": DATABASE, "coll": to})

    def replaced(self, name: str) -> dict[str, Any]:
        """Return the rename of a collection that no event has shown, to a name."""
        for place in [each for each in self.collections if each[0] == name]:
            del self.collections[place]
        for number in self.chance.sample(range(300), 40):
            self.collections[name, number] = {"_id": number, "new": self.number}
        return self._event("rename", "hidden", None, to={"db": DATABASE, "coll": name})

    def copied(self, name: str) -> dict[str, Any]:
        """Return the drop of a collection that movePrimary has copied before."""
        return self._event("drop", name, None)

    def misfit(self) -> list[dict[str, Any]]:
        """Return the update of a document that does not fit what events have shown of it."""
        places = [place for place in self.collections if place[0] in "abc"]
        if not places:
            return []
        place = self.chance.choice(places)
        self.collections[place] = {**self.collections[place], "n": {"y": 1}}
        fields = {"updatedFields": {"n.y": 1}, "removedFields": [], "disambiguatedPaths": {}}
        return [self._event("update", *place, updateDescription=fields)]

    def read(self, name: str, number: int) -> list[dict[str, Any]]:
        """Return the row of a snapshot with a document, if there is the document."""
        place = name, number
        documents = [self.collections[place]] if place in self.collections else []
        return [self._event("read", *place, fullDocument=document) for document in documents]

    def part(self, names: Sequence[str], rest: int) -> list[dict[str, Any]]:
        """Return rows of a snapshot: the documents with even, or with odd numbers."""
        token = self._token()
        return [
            self._event("read", name, number, token, fullDocument=document)
            for (name, number), document in self.collections.items()
            if name in names and number % 2 == rest
        ]

    def end(self, names: Sequence[str], begun: int) -> dict[str, Any]:
        """Return the end of a snapshot that began at a number."""
        times = [Timestamp(1_700_000_000, each) for each in (begun, self.number)]
        read = [{"db": DATABASE, "coll": name} for name in names]
        document = {"clusterTime": times[0], "readUntil": times[1], "collections": read}
        return self._event("snapshotEnd", "", None, self._token(), **document)

    def _change(self, number: int) -> dict[str, Any]:
        name = self.chance.choice("abc")
        place = name, number
        text = "x" * self.chance.randrange(200)
        match self.chance.randrange(4):
            case 0 if place in self.collections:
                del self.collections[place]
                return self._event("delete", name, number)
            case 1 if place in self.collections:
                self.collections[place] = {**self.collections[place], "n": self.number}
                description = {"updatedFields": {"n": self.number}, "removedFields": []}
                return self._event("update", name, number, updateDescription=description)
            case _:
                document = {"_id": number, "text": text, "n": self.number}
                self.collections[place] = document
                return self._event("replace", name, number, fullDocument=document)

    def _token(self) -> str:
        self.number += 1
        return high_water_mark(Timestamp(1_700_000_000, self.number))

    def _event(
        self, kind: str, name: str, number: int | None, token: str = "", **fields: Any
    ) -> dict[str, Any]:
        event = {"_id": {"_data": token or self._token()}, "operationType": kind}
        event |= {"ns": {"db": DATABASE, "coll": name}, **fields}
        return event if number is None else {**event, "documentKey": {"_id": number}}


def change_rows(events: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    rows = [
        (
            DATABASE,
            each["ns"]["coll"],
            each["operationType"],
            each["_id"]["_data"],
            bson.encode(each),
        )
        for each in events
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], names=CHANGE_COLUMNS)


def staged(folder: Path, events: Sequence[dict[str, Any]], tasks: int = 3) -> list[ChangeReport]:
    """What several tasks report, each of which reads the changes of some documents."""
    parts: list[list[dict[str, Any]]] = [[] for _ in range(tasks)]
    for each in events:
        number = each.get("documentKey", {}).get("_id", 0)
        parts[number % tasks if isinstance(number, int) else 0].append(each)
    reports = []
    for part in filter(None, parts):
        stage = ChangeStage(str(folder))
        stage.add(change_rows(part))
        reports.append(from_json(ChangeReport, to_json(stage.close())))
    return reports


def apply(
    folder: Path,
    events: Sequence[dict[str, Any]],
    number: int | None = None,
    scope: TableScope | None = None,
    table: CurrentTable | None = None,
) -> CurrentTable:
    if table is None:
        table = CurrentTable(str(folder))
    else:
        table.reload()
    batch = None if number is None else Batch("q", number)
    quarantine = None if number is None else DeltaLog(str(folder.with_name("quarantine")))
    changes = ChangeReport.total(staged(folder, events))
    table.apply_staged(None, Upsert(changes, batch, quarantine, scope))
    return table


def documents_in(folder: Path | str) -> Documents:
    """Return the documents of a current table, each of which has one row."""
    table = DeltaTable(folder).to_pyarrow_table()
    checksum = Checksum.of(table.drop_columns([KEY_RANGE]))
    assert checksum == CurrentTable.existing(str(folder)).state.checksum
    rows = table.to_pylist()
    by_place = {(row["collection"], bson.decode(row["document"])["_id"]): row for row in rows}
    assert len(by_place) == len(rows)
    for row in rows:
        assert json.loads(row["fullDocument"]) == bson.decode(row["document"])
    return {place: bson.decode(row["document"]) for place, row in by_place.items()}


class KilledError(Exception):
    """The end of the process."""


STEPS = {
    "changes staged": (staged_changes.ChangeStage, "_write"),
    "all changes read": (CurrentTable, "_plan"),
    "planned": (current_table, "merges_of"),
    "files written": (range_files.RangeFiles, "close"),
    "merged": (CurrentTable, "_merge"),
    "before quarantine": (DeltaLog, "append"),
    "before commit": (DeltaLog, "replace"),
    "after commit": (current_table, "remove_staged"),
    "before vacuum": (DeltaLog, "vacuum"),
}
"""The functions around which the process ends, by what has happened before."""


def killed(monkeypatch: pytest.MonkeyPatch, step: str, after: bool, attempt: Any) -> bool:
    """Run an attempt that ends before or after one of STEPS; return whether it came so far."""
    owner, function = STEPS[step]
    original = getattr(owner, function)

    def mortal(*args: Any, **named: Any) -> None:
        if after:
            original(*args, **named)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, mortal)
        try:
            attempt()
        except KilledError:
            return True
    return False


def with_field(document: dict[str, Any], field: bytes) -> RawBSONDocument:
    """Return a document with one more field, given as its bytes."""
    body = bson.encode(document)[4:-1] + field
    return RawBSONDocument(struct.pack("<i", len(body) + 5) + body + b"\0")
