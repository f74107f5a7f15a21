"""The start parameters of a worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bson.objectid import ObjectId


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The parameters of a worker; all but ``number`` are common to all workers.

    Args:
        number: the worker's number, from 1 to ``count``.
        count: the number of workers.
        mark: the mark in all cursor ids of the router.
        folder: the router's private folder.
        process_id: the process id in all hello replies.
        started: the start time of the router.
        settings: the explicitly set options, as arguments of ``Settings``.
        arguments: the router's command line.
        ports: the parent's listening ports, by the names of the log attributes.
        verbosity: the log level at present, which a client may have set.
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
    verbosity: int
