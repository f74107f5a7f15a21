"""PySpark reads the router: a fault-tolerant stream source whose offsets are resume tokens.

    from spark_sink import local_session          # or register(spark) with a session of your own

    spark = local_session()
    events = spark.readStream.format("mergerouter").option("uri", "mongodb://127.0.0.1:27020").load()
    query = (
        events.writeStream.format("parquet")
        .option("path", "events").option("checkpointLocation", "checkpoint").start()
    )

Each event is in one micro-batch, and a batch that Spark repeats has the same content
(docs/spark-rationale.md#exactly-once). The sink must be idempotent: Spark's file sinks are, and a
`foreachBatch` is if it writes by `token`. Without a start option a query begins "now". If the
shards' oplogs no longer contain the checkpoint's position, it fails, or reads a snapshot with
`onHistoryLost=snapshot`; it never continues with a gap.

Rows: spark_sink.rows.row_schema; options: spark_sink.options.stream_options.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sink.jobs.history.point_in_time import read_at as read_at
    from spark_sink.rows.document_parsing import parse_documents as parse_documents
    from spark_sink.running import Job as Job
    from spark_sink.source.schema import infer_schema as infer_schema
    from spark_sink.spark_session import local_session as local_session
    from spark_sink.spark_session import register as register
    from spark_sink.tables.current_table import apply_changes as apply_changes
    from spark_sink.verification.collection_comparison import verify as verify

_MODULES = {
    "Job": "spark_sink.running",
    "apply_changes": "spark_sink.tables.current_table",
    "infer_schema": "spark_sink.source.schema",
    "local_session": "spark_sink.spark_session",
    "parse_documents": "spark_sink.rows.document_parsing",
    "read_at": "spark_sink.jobs.history.point_in_time",
    "register": "spark_sink.spark_session",
    "verify": "spark_sink.verification.collection_comparison",
}


__all__ = list(_MODULES)


def __dir__() -> list[str]:
    """Return the names for users, which are imported at first use."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import PySpark when it is needed: the workers' modules do without the session."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
