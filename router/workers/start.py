"""What a worker is told when it is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bson.objectid import ObjectId


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """All that a worker needs to know and shares with the others.

    Args:
        number: the worker's own, from 1 to ``count``.
        count: how many workers there are.
        mark: what all cursor ids of the router carry.
        folder: the router's private folder.
        process_id: the one that all hellos carry.
        started: when the router was started.
        settings: what was set, as ``Settings`` takes it.
        arguments: the router's command line.
        ports: where the parent listens, by the names of the log's attributes.
    """

    number: int
    count: int
    mark: int
    folder: Path
    process_id: ObjectId
    started: datetime
    settings: Mapping[str, Any]
    arguments: tuple[str, ...]
    ports: Mapping[str, int]
