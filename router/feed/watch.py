"""Parse a feed client's request, one line of JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bson import json_util
from bson.json_util import CANONICAL_JSON_OPTIONS, RELAXED_JSON_OPTIONS, JSONOptions

from router.config.problems import nearest
from router.request.stream_request import StreamRequest, parse_request

_FORMS = {"relaxed": RELAXED_JSON_OPTIONS, "canonical": CANONICAL_JSON_OPTIONS}
_STAGE_OPTIONS = (
    "resumeAfter",
    "startAfter",
    "startAtOperationTime",
    "fullDocument",
    "fullDocumentBeforeChange",
    "showExpandedEvents",
)
_OWN = ("database", "collection", "pipeline", "json", "heartbeatMs")
_HEARTBEATS = range(10, 3_600_001)


@dataclass(frozen=True, slots=True)
class Watch:
    """A feed's change stream and its output format.

    ``form`` is the form of JSON. ``heartbeat`` is the number of seconds without events after which
    a line gives the stream's resume token, None for never.
    """

    request: StreamRequest
    form: JSONOptions
    heartbeat: float | None = None


def parse_watch(line: bytes | str | Mapping[str, Any]) -> Watch:
    """Parse a client's line, or the default from the settings (docs/feed.md).

    Args:
        line: extended JSON with ``database`` and ``collection`` (neither: the whole cluster),
            ``pipeline``, a starting point and further options under their names in
            ``$changeStream``, ``json``: ``relaxed`` (the default) or ``canonical``, and
            ``heartbeatMs``.

    Raises:
        ValueError: the line is not extended JSON, or a field is unknown or invalid.
        CommandError: mongos refuses such a stream.
    """
    wanted = _document(line) if isinstance(line, bytes | str) else dict(line)
    for name in wanted:
        if name not in _OWN and name not in _STAGE_OPTIONS:
            known = (*_OWN, *_STAGE_OPTIONS)
            raise ValueError(f"{name} is not a field of a feed's request.{nearest(name, known)}")
    name = wanted.get("json", "relaxed")
    form = _FORMS.get(name) if isinstance(name, str) else None
    if form is None:
        raise ValueError(f"json must be 'relaxed' or 'canonical', not {name!r}")
    pipeline = wanted.get("pipeline", [])
    if not isinstance(pipeline, list):
        raise ValueError(f"pipeline must be an array of stages, not {pipeline!r:.60}")
    options = {name: wanted[name] for name in _STAGE_OPTIONS if name in wanted}
    database, target, options = _scope(wanted, options)
    command: dict[str, Any] = {
        "aggregate": target,
        "pipeline": [{"$changeStream": options}, *pipeline],
        "cursor": {},
        "$db": database,
    }
    return Watch(parse_request(database, command), form, _heartbeat(wanted))


def _heartbeat(wanted: Mapping[str, Any]) -> float | None:
    milliseconds = wanted.get("heartbeatMs")
    if milliseconds is None:
        return None
    whole = isinstance(milliseconds, int) and not isinstance(milliseconds, bool)
    if not whole or milliseconds not in _HEARTBEATS:
        raise ValueError(
            f"heartbeatMs must be a whole number from {_HEARTBEATS.start} to {_HEARTBEATS.stop - 1}"
        )
    return int(milliseconds) / 1000


def _document(line: bytes | str) -> dict[str, Any]:
    try:
        wanted = json_util.loads(line)
    # The decoder raises more than ValueError: for decimals, for code, for deep nesting, …
    except Exception as error:
        raise ValueError(f"the request is not extended JSON: {error}") from error
    if not isinstance(wanted, dict):
        raise ValueError(f"the request must be a JSON object, not {wanted!r:.60}")
    return wanted


def _scope(
    wanted: Mapping[str, Any], options: dict[str, Any]
) -> tuple[str, str | int, dict[str, Any]]:
    database, collection = wanted.get("database"), wanted.get("collection")
    for name, value in (("database", database), ("collection", collection)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} must be a string, not {value!r:.60}")
    if database is None:
        if collection is not None:
            raise ValueError("collection is given without database: name both, or neither")
        return "admin", 1, {**options, "allChangesForCluster": True}
    return database, collection if collection is not None else 1, options
