"""Verifies the current table of a running job, round by round, at a bounded cost to the cluster.

A round walks through the table, some keys at a time, and reads the documents of its
keys; then it walks through the keys of the collections, and looks them up in the table. Each slice
is compared as of the cluster time of the newest version. There a transaction over several shards
may be visible a tick earlier than in the stream, so a key counts as different if later versions
differ, too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import bson
import pyarrow as pa
import pyarrow.compute as pc
from bson import json_util
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import OptionError, SourceError
from spark_sink.events.positions import after
from spark_sink.jobs.commands import Rounds
from spark_sink.jobs.job_folder import CURRENT, JobFolder
from spark_sink.jobs.status import verified_line
from spark_sink.jobs.tables_job import Findings
from spark_sink.options.stream_options import parse_options
from spark_sink.signals.channels import send
from spark_sink.snapshot.plan import Chunk, filter_of
from spark_sink.source.tasks import snapshot_planner
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.key_ranges import KEY_COLUMNS
from spark_sink.tables.prepare import EVENT
from spark_sink.verification.collections import document_options
from spark_sink.verification.slices import (
    PLACE,
    Comparison,
    Difference,
    Key,
    VersionRows,
    newest_version,
    place_of,
)

# Seconds of reading in a slice.
_SLICE_SECONDS = 30
# The most keys of one read, and rows of a slice, whose documents are in memory.
_KEYS, _ROWS = 1_000, 10_000
# Versions that must differ before a key counts as different.
_LOOKS = 3
# Differences of a round that are repaired, and shown; and the keys of one signal.
_MOST_KEPT, _SHOWN, _KEYS_OF_SIGNAL = 1_000, 20, 100
_POLL_SECONDS = 0.5
# Attempts of a slice, and the seconds between them.
_ATTEMPTS, _RETRY_SECONDS = 10, 30.0

_Result = TypeVar("_Result")


@dataclass
class _Round:
    """A round: the cluster time as of which, or later, it has compared, and what it has found.

    Args:
        rows: the rows and keys compared.
        count: the keys that differ.
        differences: some of them.
    """

    through: Timestamp | None = None
    rows: int = 0
    count: int = 0
    differences: list[Difference] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """Return a complete round for the commits of the table, and for the status."""
        assert self.through is not None
        return {
            "through": datetime.fromtimestamp(self.through.time, UTC).isoformat(),
            "rows": self.rows,
            "differences": self.count,
            "first": self.differences[:_SHOWN],
        }


class Verifier:
    """Compares the current table of a job, in a thread of its own, until it is stopped.

    Args:
        options: of the source, with `uri`.
        rounds: how it verifies. To repair is to request a snapshot of the keys that differ, and to
            remove documents that are gone.
        done: called after each round with the time through which it has verified, in seconds since
            1970, the rows compared, and the keys that differ.

    Raises OptionError if a pipeline decides which documents the table has.
    """

    def __init__(
        self,
        folder: JobFolder,
        options: Mapping[str, str],
        rounds: Rounds,
        done: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        if parse_options(options).lacks_snapshot_filters:
            raise OptionError(
                "--verify-every reads documents, and the stages of option 'pipeline' work on "
                "events: set option snapshotFilters, which selects documents ({} is all)"
            )
        rows = str(rounds.rate * _SLICE_SECONDS)
        own = {"uri": options["uri"], "documents": "raw", "snapshotChunkRows": rows}
        self._options = parse_options({**document_options(options), **own})
        self._folder = folder
        self._address = folder.table(CURRENT)
        self._every, self._rate, self._repair = rounds
        self._done = done
        self._comparison = Comparison(self._options, self._pace)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verifier", daemon=True)
        found = VersionRows(self._address).position.get("verified", {})
        self.findings = Findings(self._address, found)
        """What the last complete round has found, and what its repair removes."""

    def __enter__(self) -> Verifier:
        """Begin the first round."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the round, within the time of one read."""
        self._ending.set()
        self._thread.join(_RETRY_SECONDS)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._every
            try:
                self._verify()
            except _EndedError:
                return
            except Exception as error:  # noqa: BLE001 - the job would go on, never verified
                _tell(f"verification: the round has ended: {error}")

    def _verify(self) -> None:
        """Compare all keys, and publish the result."""
        found = _Round()
        place: str | None = ""
        while place is not None:
            place = self._retried(partial(self._compare_rows, place, found))
        self._compare_keys(found)
        assert found.through is not None
        for each in found.differences[:_SHOWN]:
            fields = " ".join([each["difference"], *each["fields"]])
            token = each["token"] or "none"
            _tell(f"difference: {each['namespace']} {each['key']} {fields} (token {token})")
        if self._repair:
            self._request(found.differences)
            now = len(found.differences)
            if left := found.count - now:
                _tell(f"repair: {now:,} differences now, {left:,} in the next rounds")
        self.findings.found = found.to_document()
        _tell(f"verified {verified_line(self.findings.found)}")
        self._done(found.through.time, found.rows, found.count)

    def _retried(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of work on a slice, which begins again after a failure."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return work()
            except (SourceError, PyMongoError, OSError) as error:
                _tell(f"verification continues in {_RETRY_SECONDS:.0f} s: {error}")
                self._wait(_RETRY_SECONDS)
        return work()

    def _compare_rows(self, behind: str, found: _Round) -> str | None:
        """Compare the next rows of the table with their documents; return the last one's place."""
        version = self._version(found)
        rows = version.behind(behind, min(self._rate * _SLICE_SECONDS, _ROWS))
        if not rows.num_rows:
            return None
        suspects: dict[str, Key] = {}
        places = rows[PLACE].unique()
        for start in range(0, len(places), _KEYS):
            chosen = pc.is_in(rows[PLACE], value_set=places.slice(start, _KEYS))
            part = rows.filter(chosen)
            suspects.update(self._comparison.differences(version, part, part))
        self._confirm(suspects, version, found)
        found.rows += rows.num_rows
        return str(rows[PLACE][-1].as_py())

    def _compare_keys(self, found: _Round) -> None:
        """Look for the keys of the collections in the table."""
        with closing(RouterClient(self._options)) as client:
            planner = snapshot_planner(client, self._options)
            accepts = self._options.snapshot.accepts
            plan = planner.begin(self._version(found).time, accepts)
            while not plan.ended:
                plan = planner.next_batch(plan, accepts)
                for chunk in chain.from_iterable(planner.tasks(plan, accepts)):
                    self._retried(partial(self._compare_chunk, chunk, found))

    def _compare_chunk(self, chunk: Chunk, found: _Round) -> None:
        version = self._version(found)
        suspects, count = self._comparison.missing(version, chunk)
        self._confirm(suspects, version, found)
        found.rows += count

    def _confirm(self, suspects: Mapping[str, Key], version: VersionRows, found: _Round) -> None:
        """Look again at keys that differ in a version, and note those that keep differing."""
        differences: dict[str, Difference] = {}
        for _ in range(_LOOKS - 1):
            if not suspects:
                return
            version = self._version(found, later_than=version)
            differences = {}
            names = [{name: each[name] for name in KEY_COLUMNS} for each in suspects.values()]
            for start in range(0, len(names), _KEYS):
                part = names[start : start + _KEYS]
                rows = version.find([place_of(each) for each in part])
                keys = pa.Table.from_pylist(part)
                differences |= self._comparison.differences(version, keys, rows)
            suspects = differences
        found.count += len(differences)
        room = _MOST_KEPT - len(found.differences)
        kept = list(differences.values())[:room]
        found.differences += kept
        if self._repair:
            self._remove([each for each in kept if each["difference"] == "extra"], version.time)

    def _version(self, found: _Round, later_than: VersionRows | None = None) -> VersionRows:
        """Return the newest version, once its time is later than that of a given version."""
        while True:
            version = newest_version(self._address)
            if version is not None and (later_than is None or version.time > later_than.time):
                found.through = min(found.through or version.time, version.time)
                return version
            self._wait(_POLL_SECONDS)

    def _pace(self, documents: int) -> None:
        self._wait(documents / self._rate)

    def _wait(self, seconds: float) -> None:
        if self._ending.wait(seconds):
            raise _EndedError

    def _remove(self, differences: list[Difference], when: Timestamp) -> None:
        """Let the next batch remove documents that did not exist at a cluster time."""
        change = {
            "token": high_water_mark(after(when).time),
            "kind": EVENT,
            "documentKey": None,
        }
        change["payload"] = bson.encode({"operationType": "delete"})
        keys = ({name: each[name] for name in KEY_COLUMNS} for each in differences)
        self.findings.remove([{**key, **change} for key in keys])

    def _request(self, differences: list[Difference]) -> None:
        """Request a snapshot of the documents that the table lacks, or has with other content."""
        by_name: dict[str, list[str]] = {}
        for each in differences:
            if each["difference"] != "extra":
                by_name.setdefault(each["namespace"], []).append(each["key"])
        for name, keys in by_name.items():
            for start in range(0, len(keys), _KEYS_OF_SIGNAL):
                chosen = filter_of(keys[start : start + _KEYS_OF_SIGNAL])
                text = json_util.dumps(chosen, json_options=json_util.CANONICAL_JSON_OPTIONS)
                condition = {"data-collection": name, "filter": text}
                data = {"data-collections": [name], "additional-conditions": [condition]}
                send(self._folder.signals, {"type": "execute-snapshot", "data": data})


class _EndedError(Exception):
    """The verifier is being stopped."""


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
