"""Our Avro beside that of Kafka Connect's converter, with one registry for both."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pymongo
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.debezium.options import MessageOptions
from spark_sink.events.heartbeats import heartbeat
from tests.debezium.engine import reason_to_skip
from tests.debezium.messages import events_of_stream, of_events
from tests.debezium.workload import DONE, Workload
from tests.doubles.schema_registry import SchemaRegistry, serving
from tests.harness.clusters import start_real_cluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("debezium")]

_ROOT = Path(__file__).parents[2]
_NOW = 1_800_000_000_123_456_789
_IMAGES = {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"}


def of_converter(folder: Path, url: str, given: Iterable[list[Any]]) -> list[Any]:
    """Return what AvroConverter makes of messages, and whether it reads ours as the same."""
    source, out = folder / "given", folder / "out"
    source.write_text("".join(json.dumps(each) + "\n" for each in given))
    arguments = [sys.executable, "-m", "tests.debezium.avro_process", url, str(source), str(out)]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        arguments, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return [json.loads(line) for line in out.read_text().splitlines()]


def in_base64(part: bytes | None) -> str | None:
    return None if part is None else base64.b64encode(part).decode()


def test_messages_are_those_of_kafka_connects_converter(tmp_path: Path) -> None:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    streams = []
    with (
        start_real_cluster(2, noop_interval=1) as cluster,
        pymongo.MongoClient[dict[str, Any]](cluster.mongos_uri) as client,
    ):
        for seed in (1, 2, 3):
            time = client.admin.command("ping")["$clusterTime"]["clusterTime"]
            work = Workload(client, list(cluster.shards), Random(seed), f"avro-{seed}")
            work.prepare()
            work.run(150)
            work.finish()
            start = Timestamp(time.time, time.inc + 1)
            names, images = work.databases, _IMAGES if seed % 2 else {}
            streams.append(events_of_stream(cluster.mongos_uri, names, start, DONE, images, {}))
    beat = RawBSONDocument(heartbeat(Timestamp(1_700_000_000, 7)))
    differing, count = [], 0
    with serving(SchemaRegistry()) as registry:
        for seed, events in enumerate(streams):
            names = {"prefix": ("p", "2-p", "é")[seed], "transactions": seed != 1}
            with_schemas = MessageOptions(**names, schemas=True)
            avro = MessageOptions(**names, schema_registry_url=registry.url)
            texts, ours = (
                of_events([*events, beat], options, lambda: _NOW)
                for options in (with_schemas, avro)
            )
            folder = tmp_path / str(seed)
            folder.mkdir()
            pairs = [
                [*text, *map(in_base64, our[1:])] for text, our in zip(texts, ours, strict=True)
            ]
            known = len(registry.schemas)
            for pair, found in zip(pairs, of_converter(folder, registry.url, pairs), strict=True):
                count += 1
                wanted = [[pair[3], True], [pair[4], True]]
                differing += [] if found == wanted else [(pair, found)]
            assert len(registry.schemas) == known, registry.schemas[known:]
    assert not differing, differing[:3]
    assert count > 400
