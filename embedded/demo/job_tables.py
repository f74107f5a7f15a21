"""The tables of the demo's Spark job, read as Delta tables."""

from datetime import UTC
from pathlib import Path
from typing import Any

from bson import json_util

from embedded.demo.ledger import Change, Seen

COLUMNS = [
    "token",
    "operationType",
    "documentKey",
    "fullDocument",
    "updateDescription",
    "clusterTime",
    "clusterTimeOrdinal",
]


class JobTables:
    """The bronze table and the current table of a job; each row of bronze is read once.

    Only batches that Spark has committed count: others may not be in the current table yet.

    Attributes:
        rows: the rows of changes.
        documents: the number of documents that the snapshot has read.
        mark: what the tokens of events after the snapshot's cluster time sort above; "" until the
            snapshot has ended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batch = -1
        self.rows: list[dict[str, Any]] = []
        self.documents = 0
        self.mark = ""

    def refresh(self) -> int:
        """Read the batches committed since the last call; return the number of changes so far."""
        # Imported here because the demo also runs without Spark's packages.
        import pyarrow.compute as pc
        from deltalake import DeltaTable

        commits = (self._folder / "checkpoint" / "commits").glob("[0-9]*")
        last = max((int(file.name) for file in commits), default=-1)
        # A batch without rows makes no table.
        if last > self._batch and DeltaTable.is_deltatable(str(self._folder / "bronze")):
            batch = pc.field("batch")
            bronze = DeltaTable(self._folder / "bronze").to_pyarrow_dataset()
            rows = bronze.filter((batch > self._batch) & (batch <= last)).to_table(COLUMNS)
            for row in rows.to_pylist():
                self._read(row)
            self._batch = last
        return len(self.rows)

    def seen(self) -> Seen:
        """Return the committed changes in token order, including duplicates."""
        seen = Seen()
        for row in sorted(self.rows, key=lambda row: str(row["token"])):
            event = {name: json_util.loads(row[name]) for name in COLUMNS[2:5] if row[name]}
            change = Change.of_event({"operationType": row["operationType"], **event})
            seen.add(row["token"], change)
        return seen

    def current(self) -> list[tuple[int, int]]:
        """Return the id and the version of each document in the current table, if there is one."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self._folder / "current")):
            return []
        table = DeltaTable(self._folder / "current").to_pyarrow_table(columns=["fullDocument"])
        documents = [json_util.loads(text) for text in table["fullDocument"].to_pylist()]
        return [(document["_id"], document["version"]) for document in documents]

    def _read(self, row: dict[str, Any]) -> None:
        if row["operationType"] == "read":
            self.documents += 1
        elif row["operationType"] == "snapshotEnd":
            second = int(row["clusterTime"].astimezone(UTC).timestamp())
            self.mark = f"82{second:08X}{row['clusterTimeOrdinal'] + 1:08X}"
        else:
            self.rows.append(row)
