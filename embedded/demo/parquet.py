"""The tables of the demo's Spark job, read from their Parquet files."""

import json
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
    """The bronze table and the current table of a job; each file of bronze is read once.

    Only batches that Spark has committed count: others may be written again.

    Attributes:
        rows: the rows of changes.
        documents: the number of documents that the snapshot has read.
        mark: what the tokens of events after the snapshot's cluster time sort above; "" until the
            snapshot has ended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches: set[int] = set()
        self.rows: list[dict[str, Any]] = []
        self.documents = 0
        self.mark = ""

    def refresh(self) -> int:
        """Read the batches committed since the last call; return the number of changes so far."""
        commits = (self._folder / "checkpoint" / "commits").glob("[0-9]*")
        for batch in sorted({int(file.name) for file in commits} - self._batches):
            for file in self._folder.glob(f"bronze/*/*/batch={batch}/*.parquet"):
                self._read(file)
            self._batches.add(batch)
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
        """Return the id and the version of each document in the current table."""
        # Imported here because the demo also runs without Spark's packages.
        import pyarrow.parquet as parquet

        folder = self._folder / "current"
        manifest = max((folder / "versions").glob("*.json"))
        buckets = json.loads(manifest.read_text())["files"].values()
        documents = [
            json_util.loads(text)
            for name in [name for names in buckets for name in names]
            for text in parquet.read_table(folder / name)["fullDocument"].to_pylist()
        ]
        return [(document["_id"], document["version"]) for document in documents]

    def _read(self, file: Path) -> None:
        import pyarrow.parquet as parquet

        for row in parquet.ParquetFile(file).read(columns=COLUMNS).to_pylist():
            if row["operationType"] == "read":
                self.documents += 1
            elif row["operationType"] == "snapshotEnd":
                second = int(row["clusterTime"].replace(tzinfo=UTC).timestamp())
                self.mark = f"82{second:08X}{row['clusterTimeOrdinal'] + 1:08X}"
            else:
                self.rows.append(row)
