"""The rows that the demo's Spark query has committed, read from its Parquet files."""

import json
from pathlib import Path
from typing import Any

from bson import json_util

from embedded.demo.ledger import Change, Seen

COLUMNS = ["token", "operationType", "documentKey", "fullDocument", "updateDescription"]


class CommittedFiles:
    """The Parquet files that Spark's file sink has committed, each read once.

    Only files listed in the sink's ``_spark_metadata`` log count. Other files may come from a batch
    that did not commit.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches: set[str] = set()
        self.rows: list[dict[str, Any]] = []

    def refresh(self) -> int:
        """Read the files committed since the last call; return the number of rows so far."""
        log = self._folder / "_spark_metadata"
        if log.is_dir():
            for batch in sorted(log.iterdir()):
                if batch.name[0] != "." and batch.name not in self._batches:
                    self._read(batch)
                    self._batches.add(batch.name)
        return len(self.rows)

    def seen(self) -> Seen:
        """Return the committed changes in token order, including duplicates."""
        seen = Seen()
        for row in sorted(self.rows, key=lambda row: str(row["token"])):
            event = {name: json_util.loads(row[name]) for name in COLUMNS[2:] if row[name]}
            change = Change.of_event({"operationType": row["operationType"], **event})
            seen.add(row["token"], change)
        return seen

    def _read(self, batch: Path) -> None:
        # Imported here because the demo also runs without Spark's packages.
        import pyarrow.parquet as parquet

        for line in batch.read_text().splitlines()[1:]:
            entry = json.loads(line)
            path = self._folder / Path(entry["path"]).name
            self.rows += parquet.read_table(path, columns=COLUMNS).to_pylist()
