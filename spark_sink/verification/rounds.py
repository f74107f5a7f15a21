"""Verifies the current table of a running job, round by round, at a bounded rate.

A round is a comparison of the table with its collections, half a minute's rows at a time. A
round that the job's end has interrupted continues with the next start.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import bson
from bson.timestamp import Timestamp
from pyspark.sql import SparkSession

from shard_client.bson.resume_token import high_water_mark
from spark_sink.console import say
from spark_sink.errors import OptionError
from spark_sink.events.positions import after
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.jobs.job_tables import CURRENT
from spark_sink.jobs.report.status import verified_line
from spark_sink.jobs.table_commits import Findings
from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.plan import filter_of
from spark_sink.snapshot.signal import EXECUTE
from spark_sink.snapshot.signal_channels import send
from spark_sink.tables.keyed_rows import EVENT
from spark_sink.tables.state_files import newest_state
from spark_sink.tables.table_state import TableState
from spark_sink.verification.collection_comparison import ROUND, Comparison, document_options

# The most differences of a round that are repaired, and shown.
_MOST_KEPT, _SHOWN = 1_000, 20
# The most characters of names and keys in a signal: longer filters are refused.
_SIGNAL_CHARACTERS = 15_000
_POLL_SECONDS = 0.5
# Seconds from a failure of a round to its continuation.
_RETRY_SECONDS = 30.0
# Seconds for which the end of a job waits for the step in progress.
_STOP_SECONDS = 30.0


def require_document_filters(options: Mapping[str, str]) -> None:
    """Raise OptionError if a pipeline decides which documents the tables of a source have."""
    if parse_options(options).lacks_snapshot_filters:
        raise OptionError(
            "--verify-every reads documents, and the stages of option 'pipeline' work on "
            "events: set option snapshotFilters, which selects documents ({} is all)"
        )


class Verifier:
    """Compares the current table of a job, in a thread of its own, until it is stopped.

    Args:
        options: of the source, with `uri`, that `require_document_filters` has accepted.
        settings: with `verify_every`; `repair` requests a snapshot of the keys that differ, and
            removes documents that are gone.
        done: called after each round with the time through which it has verified, in seconds since
            1970, and the numbers of rows compared and of keys that differ.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: JobFolder,
        options: Mapping[str, str],
        settings: JobSettings,
        done: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        self._options = {"uri": options["uri"], **document_options(options)}
        self._spark = spark
        self._folder = folder
        self._address = folder.table(CURRENT)
        self._settings = settings
        self._done = done
        self._ending = threading.Event()
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="verifier", daemon=True)
        verified = newest_state(self._address).batch.verified
        self.findings = Findings(self._address, verified)
        """What the last complete round has found, and what its repair removes."""

    def __enter__(self) -> Verifier:
        """Begin the first round."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the round; it waits 30 s at most for the step in progress."""
        self._ending.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        due, every = time.monotonic(), self._settings.verify_every or 0.0
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + every
            try:
                self._verify()
            except Exception as error:  # noqa: BLE001 - the job would go on without verification
                due = time.monotonic() + _RETRY_SECONDS
                say(f"verification continues in {_RETRY_SECONDS:.0f} s: {cause_of(error)}")

    def _verify(self) -> None:
        """Compare all keys, and publish the result."""
        while not _has_all_documents(newest_state(self._address)):
            if self._ending.wait(_POLL_SECONDS):
                return
        of_table = self._spark, self._address, self._options
        comparison = Comparison(*of_table, self._settings.verify_rate, _MOST_KEPT)
        compared = comparison.compare(self._folder.address, ROUND, self._ending.wait)
        if not compared.ended:
            return
        for row in compared.first[:_SHOWN]:
            fields = " ".join([row["difference"], *row["fields"]])
            token = row["token"] or "none"
            say(f"difference: {row['namespace']} {row['key']} {fields} (token {token})")
        if self._settings.repair:
            extra = [row for row in compared.first if row["difference"] == "extra"]
            self._remove(extra, compared.through)
            others = [row for row in compared.first if row["difference"] != "extra"]
            now = len(extra) + self._request(others)
            if later := compared.count - now:
                say(f"repair: {now:,} differences now, {later:,} in the next rounds")
        self.findings.verified = {
            "through": compared.through.as_datetime().isoformat(),
            "rows": compared.rows,
            "differences": compared.count,
            "first": [*compared.first[:_SHOWN]],
        }
        say(f"verified {verified_line(self.findings.verified)}")
        self._done(compared.through.time, compared.rows, compared.count)

    def _remove(self, differences: Sequence[Mapping[str, Any]], when: Timestamp) -> None:
        """Let the next batch remove documents that did not exist at or after a cluster time."""
        payload = bson.encode({"operationType": "delete"})
        change = {"token": high_water_mark(after(when).time), "kind": EVENT, "payload": payload}
        for row in differences:
            database, _, name = row["namespace"].partition(".")
            place = "\0".join((database, name, row["key"]))
            self.findings.gone.put({"place": place, "documentKey": None, **change})

    def _request(self, differences: Sequence[Mapping[str, Any]]) -> int:
        """Request a snapshot of documents that the table lacks, or has in another version.

        There is one signal, so that the query never refuses one of many. Return the number of
        differences that it has room for.
        """
        keys, count, room = dict[str, list[str]](), 0, _SIGNAL_CHARACTERS
        for row in differences:
            name = row["namespace"]
            size = len(row["key"]) + (0 if name in keys else 2 * len(name))
            if keys and size > room:
                break
            keys.setdefault(name, []).append(row["key"])
            count, room = count + 1, room - size
        if keys:
            patterns = {name: re.escape(name) for name in keys}
            data: dict[str, Any] = {"data-collections": [*patterns.values()]}
            if room >= 0:  # else the only key is too long, and the whole collection is read
                data["additional-conditions"] = [
                    {"data-collection": pattern, "filter": filter_of(keys[name])}
                    for name, pattern in patterns.items()
                ]
            send(self._folder.signals, {"type": EXECUTE, "data": data})
        return count


def _has_all_documents(state: TableState) -> bool:
    """Return whether a table with a state has all documents, so that no snapshot completes it."""
    offset = state.batch.end
    return offset is not None and not offset.is_in_snapshot and not state.unread
