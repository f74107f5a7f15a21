"""Parsers of the texts of options and arguments, which raise ValueError."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import bson
from bson import json_util
from bson.errors import BSONError
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from spark_sink.events.positions import AtTime, Token
from spark_sink.options.java_patterns import compiled

DEFAULT_URI = "mongodb://127.0.0.1:27020"
"""Where a router listens by default."""


# Characters that show a pattern instead of a name.
_PATTERN = re.compile(r"[*?+|^$()\[\]{}\\]")
# The fewest bytes of a salt: a shorter one could be found by trial.
_LEAST_SALT = 16
# What json_util.loads raises, such as for a $numberDecimal without digits.
_NO_JSON = (ValueError, TypeError, LookupError, ArithmeticError, BSONError, RecursionError)
# Servers accept 180 levels in a command, which has some of its own.
_MOST_LEVELS = 100


def database_name(text: str) -> str:
    """Return the name of a database; it is not a pattern."""
    if not text:
        raise ValueError("must not be empty")
    if re.search(r'[\s,/."$]', text) or _PATTERN.search(text):
        raise ValueError(
            f"{text!r} is not the name of a database: name one, without a pattern, or remove the "
            "option to watch the whole cluster, which a pipeline can filter"
        )
    return text


def namespace(text: str) -> tuple[str, str]:
    """Return the name of one collection with its database."""
    database, _, collection = text.partition(".")
    if not collection:
        raise ValueError(f"must be a database and a collection such as ops.signals, not {text!r}")
    return database_name(database), collection


def collection_names(text: str) -> tuple[str, ...]:
    """Return names of collections, given with commas between them; they are not patterns."""
    collections = names(text)
    for name in collections:
        if _PATTERN.search(name):
            raise ValueError(
                f"{name!r} looks like a pattern, and names are literal: list the names "
                "with commas between them, or watch the database with a pipeline such as "
                '[{"$match": {"ns.coll": {"$regex": "^ord"}}}]'
            )
    return collections


def router_uri(text: str) -> str:
    """Return a connection string."""
    if not text.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("must begin with mongodb:// or mongodb+srv://")
    if text.startswith("mongodb://"):  # the other form would ask DNS
        try:
            parse_uri(text)
        except PyMongoError as error:
            raise ValueError(str(error)) from None
    return text


def uri_in_file(path: str) -> str:
    """Return the connection string in a file on the driver, without white space around it."""
    return router_uri(_content(path).decode(errors="replace"))


def salt_in_file(path: str) -> bytes:
    """Return the salt in a file on the driver, without white space around it."""
    salt = _content(path)
    if len(salt) < _LEAST_SALT:
        raise ValueError(
            f"{path} must have {_LEAST_SALT} bytes or more, such as those of openssl rand -hex 32"
        )
    return salt


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def some_text(text: str) -> str:
    """Return a text, which must not be empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def json_value(text: str, options: json_util.JSONOptions = json_util.DEFAULT_JSON_OPTIONS) -> Any:
    """Return extended JSON as values of BSON. Raises ValueError, also for too many levels."""
    try:
        value = json_util.loads(text, json_options=options)
        bson.encode({"": value})  # no command has longer numbers, or texts that are no UTF-8
    except json.JSONDecodeError:
        raise
    except _NO_JSON as error:
        raise ValueError(f"not extended JSON: {error}") from None
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MOST_LEVELS):
        inner: list[Any] = []
        for outer in level:
            inner += outer.values() if isinstance(outer, dict) else outer
        level = [nested for nested in inner if isinstance(nested, dict | list)]
        if not level:
            return value
    raise ValueError(f"documents and arrays of more than {_MOST_LEVELS} levels")


def stages(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return a JSON array of stages, without $changeStream itself."""
    stages = json_value(text)
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ValueError("must be a JSON array of stages")
    if any("$changeStream" in stage for stage in stages):
        raise ValueError("must not contain $changeStream itself, only the stages after it")
    return tuple(stages)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts these words in any case, and returns them as given here."""

    def parse(text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}, not {text!r}")

    return parse


def switch(off: str, on: str, *others: str) -> Callable[[str], bool]:
    """Return a parser that accepts these words in any case: whether the text is `on`."""
    parse = one_of(off, on, *others)
    return lambda text: parse(text) == on


def boolean(text: str) -> bool:
    """Return whether the text is "true", and not "false"."""
    return one_of("true", "false")(text) == "true"


def numbers(what: str, least: int = 0) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` on; messages call them `what`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f"must be {what}, not {text!r}")
        return int(text)

    return parse


positive = numbers("a positive whole number", 1)
whole_number = numbers("a whole number")
_milliseconds = numbers("a number of milliseconds")


def seconds(text: str) -> float:
    """Return the seconds of a number of milliseconds."""
    return _milliseconds(text) / 1000


def positive_seconds(text: str) -> float:
    """Return the seconds of a positive number of milliseconds."""
    return positive(text) / 1000


def unlimited_number(text: str) -> int | None:
    """Return a whole number; None for -1, which is no limit."""
    parse = numbers("-1 for no limit, 0 or a positive whole number")
    return None if text == "-1" else parse(text)


def size_in_bytes(text: str) -> int:
    """Return a number of bytes such as 64m."""
    match = re.fullmatch(r"([1-9]\d*)([kmg]?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"must be a number of bytes such as 64m, not {text!r}")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def resume_token(text: str) -> Token:
    """Return a resume token: extended JSON or its hex string."""
    document = json_value(text) if text.lstrip().startswith("{") else {"_data": text.strip()}
    if not isinstance(document, dict):
        raise ValueError(f"not a resume token: {text}")
    return Token(document)


def cluster_time(text: str) -> Timestamp:
    """Extended JSON, seconds, "seconds,increment" or an ISO 8601 time with its offset."""
    if text.lstrip().startswith("{"):
        value = json_value(text)
        if isinstance(value, Timestamp):
            return value
        raise ValueError('must be {"$timestamp": {"t": …, "i": …}}')
    if match := re.fullmatch(r"(\d+)(?:,(\d+))?", text.strip()):
        return Timestamp(int(match[1]), int(match[2] or 0))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(
            f"must be a time such as 2026-01-31T12:00:00Z, or seconds since 1970, not {text!r}"
        ) from error
    if moment.tzinfo is None:
        raise ValueError("must name its time zone, for example 2026-01-31T12:00:00Z")
    return Timestamp(int(moment.timestamp()), 0)


def position(text: str) -> AtTime | Token:
    """Return the position of a cluster time, or of a resume token."""
    for parse in (cluster_time_position, resume_token):
        try:
            return parse(text)
        except ValueError:
            continue
    raise ValueError(f"must be a time such as 2026-01-31T12:00:00Z or a resume token, not {text!r}")


def cluster_time_position(text: str) -> AtTime:
    """Return a cluster time, in the forms of `cluster_time`, as a position."""
    return AtTime(cluster_time(text))


def filters(text: str) -> Mapping[str, Mapping[str, Any]]:
    """Return a JSON object of filters by namespace."""
    conditions = json_value(text)
    if not isinstance(conditions, dict) or not all(
        isinstance(condition, dict) for condition in conditions.values()
    ):
        raise ValueError('must be a JSON object such as {"shop.orders": {"open": true}}')
    return conditions


def names(text: str, separator: str = ",") -> tuple[str, ...]:
    """Return names with commas between them."""
    entries = tuple(dict.fromkeys(name.strip() for name in text.split(separator)))
    if not all(entries):
        raise ValueError("must not be empty, nor contain an empty entry between commas")
    return entries


# No name has the character zero.
_ESCAPE_OR_COMMA = re.compile(r"\\.|,", re.DOTALL)


def patterns(text: str) -> tuple[str, ...]:
    """Regular expressions of Java with commas between them; `\\,` is a comma in a pattern."""
    separated = _ESCAPE_OR_COMMA.sub(lambda found: "\0" if found[0] == "," else found[0], text)
    expressions = tuple(
        dict.fromkeys(pattern.replace("\\,", ",") for pattern in names(separated, "\0"))
    )
    for pattern in expressions:
        compiled(pattern)
    return expressions


# MongoDB has no truncations (t).
_OPERATIONS = {"c": ("insert",), "u": ("update", "replace"), "d": ("delete",), "t": (), "none": ()}


def skipped_operations(text: str) -> tuple[Mapping[str, Any], ...]:
    """Debezium's skipped.operations, as stages."""
    letters = names(text)
    unknown = [letter for letter in letters if letter not in _OPERATIONS]
    if unknown:
        raise ValueError(f"must be of c, u, d, t and none, not {unknown[0]!r}")
    kinds = [kind for letter in letters for kind in _OPERATIONS[letter]]
    return ({"$match": {"operationType": {"$nin": kinds}}},) if kinds else ()
