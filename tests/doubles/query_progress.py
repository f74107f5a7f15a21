"""Reports of a query's progress, as Spark makes them."""

import json
from typing import Any

THROUGH = 1_795_163_230


def offset_at(seconds: int, **offset: Any) -> str:
    """Return an offset as in Spark's reports, THROUGH and some seconds."""
    time = {"$timestamp": {"t": THROUGH + seconds, "i": 1}}
    return json.dumps({"position": {"startAtOperationTime": time}, **offset})


def progress(number: int, **offset: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-11-20T08:27:10.000Z",
        "batchId": number,
        "numInputRows": 2,
        "durationMs": {"addBatch": 1500, "triggerExecution": 2000},
        "sources": [{"endOffset": offset_at(0, **offset)}],
    }
