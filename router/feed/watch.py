"""Parse a feed client's request, one line of JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bson import json_util
from bson.json_util import CANONICAL_JSON_OPTIONS, RELAXED_JSON_OPTIONS, JSONOptions
from pydantic import Field, ValidationError

from router.bson_text import shortened
from router.config.problems import Section, describe_problems
from router.parameter import MILLISECONDS
from router.request.stream_request import StreamRequest, parse_request

_LONGEST = 500
_FORMS = {"relaxed": RELAXED_JSON_OPTIONS, "canonical": CANONICAL_JSON_OPTIONS}


class _Wanted(Section):
    """The fields of a request (docs/feed.md); those without an own meaning are stage options."""

    database: str | None = None
    collection: str | None = None
    pipeline: list[Any] = Field(default_factory=list)
    form: Literal["relaxed", "canonical"] = Field(default="relaxed", alias="json")
    heartbeat_ms: int | None = Field(default=None, strict=True, ge=10, le=3_600_000)
    resume_after: Any = None
    start_after: Any = None
    start_at_operation_time: Any = None
    full_document: Any = None
    full_document_before_change: Any = None
    show_expanded_events: Any = None


_OWN = {"database", "collection", "pipeline", "form", "heartbeat_ms"}


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
    """Parse a client's line of extended JSON, or the document in the settings (docs/feed.md).

    Raises ValueError: it is not extended JSON, or a field is unknown or invalid; CommandError:
    mongos refuses such a stream.
    """
    try:
        wanted = _Wanted(**(_document(line) if isinstance(line, bytes | str) else line))
    except ValidationError as error:
        raise ValueError(shortened(describe_problems(error, _Wanted, "field"), _LONGEST)) from None
    options = wanted.model_dump(by_alias=True, exclude_none=True, exclude=_OWN)
    database = wanted.database
    if database is None:
        if wanted.collection is not None:
            raise ValueError("collection is given without database: name both, or neither")
        database, options = "admin", {**options, "allChangesForCluster": True}
    command: dict[str, Any] = {
        "aggregate": 1 if wanted.collection is None else wanted.collection,
        "pipeline": [{"$changeStream": options}, *wanted.pipeline],
        "cursor": {},
        "$db": database,
    }
    heartbeat = None if wanted.heartbeat_ms is None else wanted.heartbeat_ms * MILLISECONDS
    return Watch(parse_request(database, command), _FORMS[wanted.form], heartbeat)


def _document(line: bytes | str) -> dict[str, Any]:
    try:
        wanted = json_util.loads(line)
    # The decoder raises more than ValueError: for decimals, for code, for deep nesting, …
    except Exception as error:
        raise ValueError(f"the request is not extended JSON: {error}") from error
    if not isinstance(wanted, dict):
        raise ValueError(f"the request must be a JSON object, not {wanted!r:.60}")
    return wanted
