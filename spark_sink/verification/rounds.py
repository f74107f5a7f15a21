"""Verifies the current table of a running job, round by round, at a bounded rate.

A round is a comparison of the table with its collections, half a minute's rows at a time. A
round that the job's end has interrupted continues with the next start.
"""

from __future__ import annotations

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
from spark_sink.snapshot.unread import LostDocument
from spark_sink.tables.keyed_rows import EVENT
from spark_sink.tables.state_files import newest_state
from spark_sink.tables.table_state import TableState
from spark_sink.verification.collection_comparison import ROUND, Comparison, document_options

# The most differences of a round that are repaired, and shown.
_MOST_KEPT, _SHOWN = 1_000, 20
_POLL_SECONDS = 0.5
# Seconds from a failure of a round to its continuation.
_RETRY_SECONDS = 30.0


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
        settings: with `verify_every`; `repair` lets batches read the keys that differ again, and
            remove documents that are gone.
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
        self._thread.join(_RETRY_SECONDS)

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
            self._repair(compared.first, compared.through)
            if later := compared.count - len(compared.first):
                now = len(compared.first)
                say(f"repair: {now:,} differences now, {later:,} in the next rounds")
        self.findings.verified = {
            "through": compared.begin,
            "rows": compared.rows,
            "differences": compared.count,
            "first": [*compared.first[:_SHOWN]],
        }
        say(f"verified {verified_line(self.findings.verified)}")
        self._done(compared.through.time, compared.rows, compared.count)

    def _repair(self, differences: Sequence[Mapping[str, Any]], when: Timestamp) -> None:
        """Let the next batch remove rows whose documents are gone, and read all others again.

        The documents did, or did not, exist at or after a cluster time.
        """
        token = high_water_mark(after(when).time)
        payload = bson.encode({"operationType": "delete"})
        delete = {"documentKey": None, "token": token, "kind": EVENT, "payload": payload}
        for row in differences:
            database, _, name = row["namespace"].partition(".")
            if row["difference"] == "extra":
                place = "\0".join((database, name, row["key"]))
                self.findings.gone.put({"place": place, **delete})
            else:
                self.findings.lost.put(LostDocument(database, name, row["key"], token))


def _has_all_documents(state: TableState) -> bool:
    """Return whether a table with a state has all documents, so that no snapshot completes it."""
    offset = state.batch.end
    return offset is not None and not offset.is_in_snapshot and not state.unread
