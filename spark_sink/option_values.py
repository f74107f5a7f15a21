"""What the texts of options mean: each function raises ValueError for a bad text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from bson import json_util
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from spark_sink.positions import AtTime, PositionError, Token

# What makes a collection's name a pattern: nobody has such names, and many try such patterns.
_PATTERN = re.compile(r"[*?+|^$()\[\]{}\\]")


def database_name(text: str) -> str:
    """A database's name, no pattern."""
    if not text:
        raise ValueError("must not be empty")
    if re.search(r'[\s,/."$]', text) or _PATTERN.search(text):
        raise ValueError(
            f"{text!r} is no database's name: one database, without a pattern, can be named; "
            "without this option the whole cluster is watched, which a pipeline can narrow"
        )
    return text


def namespace(text: str) -> tuple[str, str]:
    """The name of one collection with its database."""
    database, _, collection = text.partition(".")
    if not collection:
        raise ValueError(f"must be a database and a collection such as ops.signals, not {text!r}")
    return database_name(database), collection


def collection_names(text: str) -> tuple[str, ...]:
    """Names of collections with commas between them, no patterns."""
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


def router_uri(text: str) -> str:
    """A connection string."""
    if not text.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("must begin with mongodb:// or mongodb+srv://")
    if text.startswith("mongodb://"):  # the other form would ask DNS
        try:
            parse_uri(text)
        except PyMongoError as error:
            raise ValueError(str(error)) from None
    return text


def uri_in_file(path: str) -> str:
    """The connection string in a file on the driver; white space around it does not count."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    return router_uri(text.strip())


def some_text(text: str) -> str:
    """Any text but the empty one."""
    if not text:
        raise ValueError("must not be empty")
    return text


def stages(text: str) -> tuple[Mapping[str, Any], ...]:
    """A JSON array of stages, without $changeStream itself."""
    stages = json_util.loads(text)
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ValueError("must be a JSON array of stages")
    if any("$changeStream" in stage for stage in stages):
        raise ValueError("must not hold $changeStream itself, only the stages after it")
    return tuple(stages)


def boolean(text: str) -> bool:
    """ "true" or "false"."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def positive(text: str) -> int:
    """A positive whole number."""
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"must be a positive whole number, not {text!r}")
    return int(text)


def milliseconds(text: str) -> float:
    """A number of milliseconds, in seconds."""
    if not text.isdecimal():
        raise ValueError(f"must be a number of milliseconds, not {text!r}")
    return int(text) / 1000


def positive_milliseconds(text: str) -> float:
    """A positive number of milliseconds, in seconds."""
    return positive(text) / 1000


def whole_number(text: str) -> int:
    """A whole number, 0 included."""
    if not text.isdecimal():
        raise ValueError(f"must be a whole number, not {text!r}")
    return int(text)


def size_in_bytes(text: str) -> int:
    """A number of bytes such as 64m."""
    match = re.fullmatch(r"([1-9]\d*)([kmg]?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"must be a number of bytes such as 64m, not {text!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def total_order(text: str) -> bool:
    """Whether the order is the total one."""
    if text.lower() not in ("perdocument", "total"):
        raise ValueError(f"must be perDocument or total, not {text!r}")
    return text.lower() == "total"


def reads_shards(text: str) -> bool:
    """Whether tasks read from the shards' own servers."""
    if text.lower() not in ("router", "shards"):
        raise ValueError(f"must be router or shards, not {text!r}")
    return text.lower() == "shards"


def document_form(text: str) -> str:
    """What the columns of documents hold: JSON, raw BSON, or typed structs."""
    if text.lower() not in ("json", "raw", "typed"):
        raise ValueError(f"must be json, raw or typed, not {text!r}")
    return text.lower()


def rescues_unknown(text: str) -> bool:
    """Whether a field that the schema of typed documents lacks does not fit."""
    if text.lower() not in ("rescue", "ignore"):
        raise ValueError(f"must be rescue or ignore, not {text!r}")
    return text.lower() == "rescue"


def canonical_json(text: str) -> bool:
    """Whether JSON is canonical."""
    if text.lower() not in ("relaxed", "canonical"):
        raise ValueError(f"must be relaxed or canonical, not {text!r}")
    return text.lower() == "canonical"


def resume_token(text: str) -> Token:
    """A resume token: extended JSON or its hex string."""
    document = json_util.loads(text) if text.lstrip().startswith("{") else {"_data": text.strip()}
    try:
        return Token(document)
    except PositionError as error:
        raise ValueError(f"{error}; expected {{'_data': …}} or its hex string") from error


def cluster_time(text: str) -> Timestamp:
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


def cluster_time_position(text: str) -> AtTime:
    """A cluster time, in the forms that `cluster_time` takes, as a position."""
    return AtTime(cluster_time(text))


def batch_mode(text: str) -> str:
    """What a batch read reads."""
    if text.lower() not in ("snapshot", "changes"):
        raise ValueError(f"must be snapshot or changes, not {text!r}")
    return text.lower()


def filters(text: str) -> Mapping[str, Mapping[str, Any]]:
    """A JSON object of filters by namespace."""
    found = json_util.loads(text)
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ValueError('must be a JSON object such as {"shop.orders": {"open": true}}')
    return found


def is_literal(text: str) -> bool:
    """Debezium's filters.match.mode."""
    if text.lower() not in ("regex", "literal"):
        raise ValueError(f"must be regex or literal, not {text!r}")
    return text.lower() == "literal"


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise ValueError("must not be empty, nor hold an empty entry between commas")
    return found


def patterns(text: str) -> tuple[str, ...]:
    """Regular expressions with commas between them."""
    found = names(text)
    for each in found:
        try:
            re.compile(each)
        except re.error as error:
            raise ValueError(f"{each!r} is no regular expression: {error}") from None
    return found


# MongoDB has no truncations (t).
_OPERATIONS = {"c": ("insert",), "u": ("update", "replace"), "d": ("delete",), "t": (), "none": ()}


def skipped_operations(text: str) -> tuple[Mapping[str, Any], ...]:
    """Debezium's skipped.operations, as stages."""
    letters = names(text)
    unknown = [each for each in letters if each not in _OPERATIONS]
    if unknown:
        raise ValueError(f"must be of c, u, d, t and none, not {unknown[0]!r}")
    kinds = [kind for each in letters for kind in _OPERATIONS[each]]
    return ({"$match": {"operationType": {"$nin": kinds}}},) if kinds else ()
