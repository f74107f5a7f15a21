"""The options of `spark.readStream.format("mergerouter")`.

Option names are those of MongoDB's `watch` and are not case sensitive, as everywhere in Spark.
What the server checks (values of fullDocument, stages of the pipeline) is left to the server,
except where an option would break the promise that a replayed batch has the same content.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from bson import json_util
from bson.errors import BSONError
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from spark_sink.errors import OptionError
from spark_sink.positions import AtTime, FromNow, Position, PositionError, Token
from spark_sink.scope import Scope

DEFAULT_MAX_EVENTS_PER_TRIGGER = 50_000
DEFAULT_IDLE_ADVANCE_SECONDS = 6 * 3600

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class StreamOptions:
    """What to watch, from where, and in which portions.

    uri: connection string of the router (or of a mongos).
    scope: the namespaces to watch.
    pipeline: stages after `$changeStream`.
    start: where a query without a checkpoint begins.
    max_events_per_trigger, max_bytes_per_trigger: about the most of a micro-batch; bytes None: no
        limit.
    in_total_order: tasks read stretches of the merged stream, not parts of single shards.
    reads_shards_directly: tasks read their shards from the shards' servers, not through the router.
    events_per_partition: a micro-batch is cut so that a task reads about so many events; 0: one
        task for each shard, or one in total order.
    idle_advance_seconds: how far (in cluster time) the offset of a stream without events may fall
        behind before an empty micro-batch moves it on, so that a restart finds it in the oplogs.
    raw_documents: the columns of documents hold BSON instead of JSON.
    canonical_json: canonical instead of relaxed extended JSON in the JSON columns.
    """

    uri: str = field(repr=False)
    scope: Scope = field(default_factory=Scope)
    pipeline: tuple[Mapping[str, Any], ...] = ()
    full_document: str | None = None
    full_document_before_change: str | None = None
    show_expanded_events: bool = False
    start: Position = field(default_factory=FromNow)
    max_events_per_trigger: int = DEFAULT_MAX_EVENTS_PER_TRIGGER
    max_bytes_per_trigger: int | None = None
    in_total_order: bool = False
    reads_shards_directly: bool = False
    events_per_partition: int = 0
    idle_advance_seconds: int = DEFAULT_IDLE_ADVANCE_SECONDS
    raw_documents: bool = False
    canonical_json: bool = False

    @property
    def splits_large_events(self) -> bool:
        """Whether the pipeline ends in `$changeStreamSplitLargeEvent`."""
        return bool(self.pipeline) and "$changeStreamSplitLargeEvent" in self.pipeline[-1]


def parse_options(options: Mapping[str, str]) -> StreamOptions:
    """The options that a user gave, checked. Raises OptionError."""
    given = {name.lower(): (name, value) for name, value in options.items()}
    known = {name.lower(): name for name in _KNOWN}
    for lowered, (name, _) in given.items():
        if lowered not in known:
            close = difflib.get_close_matches(lowered, known, n=1)
            hint = f"did you mean {known[close[0]]!r}?" if close else f"known: {', '.join(_KNOWN)}"
            raise OptionError(f"unknown option {name!r}; {hint}")

    def get(name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        if name.lower() not in given:
            return default
        return _checked(name, parse, given[name.lower()][1])

    uri = get("uri", _uri, None)
    if uri is None:
        raise OptionError("option 'uri' is required, for example mongodb://127.0.0.1:27020")
    parsed = StreamOptions(
        uri=uri,
        scope=_scope(uri, get("database", _database, None), get("collection", _collections, ())),
        pipeline=get("pipeline", _pipeline, ()),
        full_document=get("fullDocument", _name, None),
        full_document_before_change=get("fullDocumentBeforeChange", _name, None),
        show_expanded_events=get("showExpandedEvents", _boolean, False),
        start=_start(
            get("startAtOperationTime", _cluster_time, None),
            get("resumeAfter", _token, None),
            get("startAfter", _token, None),
        ),
        max_events_per_trigger=get(
            "maxEventsPerTrigger", _positive, DEFAULT_MAX_EVENTS_PER_TRIGGER
        ),
        max_bytes_per_trigger=get("maxBytesPerTrigger", _size, None),
        in_total_order=get("ordering", _ordering, False),
        reads_shards_directly=get("readFrom", _read_from, False),
        events_per_partition=get("eventsPerPartition", _positive, 0),
        idle_advance_seconds=get("idleAdvanceSeconds", _positive, DEFAULT_IDLE_ADVANCE_SECONDS),
        raw_documents=get("documents", _documents, False),
        canonical_json=get("jsonFormat", _json_format, False),
    )
    _refuse_unrepeatable(parsed)
    _refuse_direct(parsed)
    return parsed


def _checked(name: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except (ValueError, TypeError, BSONError) as error:
        raise OptionError(f"option {name!r}: {error}") from error


_KNOWN = (
    "uri",
    "database",
    "collection",
    "pipeline",
    "fullDocument",
    "fullDocumentBeforeChange",
    "showExpandedEvents",
    "startAtOperationTime",
    "resumeAfter",
    "startAfter",
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "ordering",
    "readFrom",
    "eventsPerPartition",
    "idleAdvanceSeconds",
    "documents",
    "jsonFormat",
)


def _start(
    time: Timestamp | None, resume_after: Token | None, start_after: Token | None
) -> Position:
    given = [value for value in (time, resume_after, start_after) if value is not None]
    if len(given) > 1:
        raise OptionError(
            "only one of startAtOperationTime, resumeAfter and startAfter can be given"
        )
    if time is not None:
        return AtTime(time)
    return resume_after or start_after or FromNow()


def _refuse_direct(options: StreamOptions) -> None:
    if not options.reads_shards_directly:
        return
    if "@" in urlsplit(options.uri).netloc:
        raise OptionError(
            "option 'readFrom': users of the cluster cannot log in on its shards: with a user in "
            "option 'uri' leave readFrom=shards out, and tasks read through the router"
        )
    if options.full_document == "updateLookup":
        raise OptionError(
            "option 'readFrom': a shard looks up a document on itself alone, and finds none that "
            "has moved; leave readFrom=shards out, or use fullDocument=whenAvailable or required"
        )


# A field path or a variable that reaches into fullDocument, but not into fullDocumentBeforeChange.
_FULL_DOCUMENT = re.compile(r'"\$*(ROOT\.)?fullDocument["\.]')


def _refuse_unrepeatable(options: StreamOptions) -> None:
    """A filter on a document looked up later answers differently each time it is asked."""
    if options.full_document != "updateLookup":
        return
    for stage in options.pipeline:
        filters = "$match" in stage or "$redact" in stage
        if filters and _FULL_DOCUMENT.search(json_util.dumps(stage)):
            raise OptionError(
                "option 'pipeline': with fullDocument=updateLookup, a filter on fullDocument "
                "selects other events whenever it is run again, so that no batch could be "
                "repeated; filter in Spark, or use fullDocument=whenAvailable or required with "
                "post-images"
            )


def _scope(uri: str, database: str | None, collections: tuple[str, ...]) -> Scope:
    """The scope of the options, or else the one that the URI's path names.

    A path beside a `database` option, and the path /admin, only say where a user is known.
    """
    path = urlsplit(uri).path.removeprefix("/")
    if database is None and path and path != _AUTHENTICATION:
        database, _, collection = unquote(path).partition(".")
        if collection and not collections:
            collections = _checked("uri", _collections, collection)
    if collections and database is None:
        raise OptionError("option 'collection' needs option 'database'")
    return Scope(database, collections)


_AUTHENTICATION = "admin"
# What makes a collection's name a pattern: nobody has such names, and many try such patterns.
_PATTERN = re.compile(r"[*?+|^$()\[\]{}\\]")


def _database(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    if re.search(r'[\s,/."$]', text) or _PATTERN.search(text):
        raise ValueError(
            f"{text!r} is no database's name: one database, without a pattern, can be named; "
            "without this option the whole cluster is watched, which a pipeline can narrow"
        )
    return text


def _collections(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not name:
            raise ValueError("must not be empty, nor hold an empty name between commas")
        if _PATTERN.search(name):
            raise ValueError(
                f"{name!r} looks like a pattern, and names are taken literally: list the names "
                "with commas between them, or watch the database with a pipeline such as "
                '[{"$match": {"ns.coll": {"$regex": "^ord"}}}]'
            )
    return names


def _uri(text: str) -> str:
    if not text.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("must begin with mongodb:// or mongodb+srv://")
    if text.startswith("mongodb://"):  # the other form would ask DNS
        try:
            parse_uri(text)
        except PyMongoError as error:
            raise ValueError(str(error)) from None
    return text


def _name(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _pipeline(text: str) -> tuple[Mapping[str, Any], ...]:
    stages = json_util.loads(text)
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ValueError("must be a JSON array of stages")
    if any("$changeStream" in stage for stage in stages):
        raise ValueError("must not hold $changeStream itself, only the stages after it")
    return tuple(stages)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"must be a positive whole number, not {text!r}")
    return int(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d*)([kmg]?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"must be a number of bytes such as 64m, not {text!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _ordering(text: str) -> bool:
    if text.lower() not in ("perdocument", "total"):
        raise ValueError(f"must be perDocument or total, not {text!r}")
    return text.lower() == "total"


def _read_from(text: str) -> bool:
    if text.lower() not in ("router", "shards"):
        raise ValueError(f"must be router or shards, not {text!r}")
    return text.lower() == "shards"


def _documents(text: str) -> bool:
    if text.lower() not in ("json", "raw"):
        raise ValueError(f"must be json or raw, not {text!r}")
    return text.lower() == "raw"


def _json_format(text: str) -> bool:
    if text.lower() not in ("relaxed", "canonical"):
        raise ValueError(f"must be relaxed or canonical, not {text!r}")
    return text.lower() == "canonical"


def _token(text: str) -> Token:
    document = json_util.loads(text) if text.lstrip().startswith("{") else {"_data": text.strip()}
    try:
        return Token(document)
    except PositionError as error:
        raise ValueError(f"{error}; expected {{'_data': …}} or its hex string") from error


def _cluster_time(text: str) -> Timestamp:
    """Extended JSON, seconds, "seconds,increment" or an ISO 8601 time with its offset."""
    if text.lstrip().startswith("{"):
        value = json_util.loads(text)
        if isinstance(value, Timestamp):
            return value
        raise ValueError('must be {"$timestamp": {"t": …, "i": …}}')
    if match := re.fullmatch(r"(\d+)(?:,(\d+))?", text.strip()):
        return Timestamp(int(match[1]), int(match[2] or 0))
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError("must name its time zone, for example 2026-01-31T12:00:00Z")
    return Timestamp(int(moment.timestamp()), 0)
