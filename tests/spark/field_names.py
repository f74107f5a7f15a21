"""Writes of documents with names that paths do not tell apart, by chance."""

import random
import struct
from contextlib import suppress
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

_TWICE = "twice"
NAMES = ("a", "b", "0", "1", "a.b", "a.0", "", "$x", "é", "a.b.0")


def value_by_chance(chance: random.Random, depth: int = 3) -> Any:
    """Return a number, a text, or an array or a document of such values."""
    kind = chance.choice("nndlt" if depth else "nt")
    if kind == "d":
        return document_by_chance(chance, depth - 1)
    if kind == "l":
        return [value_by_chance(chance, depth - 1) for _ in range(chance.randrange(4))]
    return chance.randrange(5) if kind == "n" else "text" * chance.randrange(9)


def document_by_chance(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return a document with some of NAMES."""
    names = chance.sample(NAMES, chance.randrange(6))
    return {name: value_by_chance(chance, depth) for name in names}


def changed_by_chance(chance: random.Random, value: Any) -> Any:
    """Return a value with some of its parts changed, removed or added."""
    if isinstance(value, dict):
        changed = {}
        for name, each in value.items():
            if chance.random() < 0.85:
                changed[name] = changed_by_chance(chance, each) if chance.random() < 0.4 else each
        for name in chance.sample(NAMES, chance.randrange(2)):
            changed.setdefault(name, value_by_chance(chance, 2))
        return changed
    if isinstance(value, list) and chance.random() < 0.8:
        kept = [
            changed_by_chance(chance, each) if chance.random() < 0.4 else each for each in value
        ]
        more = [value_by_chance(chance, 1) for _ in range(chance.randrange(3))]
        return kept[: chance.randrange(len(kept) + 1)] if chance.random() < 0.4 else kept + more
    return value_by_chance(chance, 2) if chance.random() < 0.3 else value


def doubled(*fields: tuple[str, Any]) -> RawBSONDocument:
    """Return a document in which names may occur twice."""
    body = b"".join(bson.encode({name: value})[4:-1] for name, value in fields)
    return RawBSONDocument(struct.pack("<i", len(body) + 5) + body + b"\0")


def write_by_chance(collection: Collection[Any], number: int, chance: random.Random) -> None:
    """Change the document with this `_id`, or insert it. A server may refuse the change.

    Some documents have a field twice, which does not change.
    """
    one = {"_id": number}
    # Updates are described only where that is shorter than the document.
    first = {"_id": number, "pad": "x" * 2000}
    with suppress(OperationFailure):
        before = collection.find_one(one)
        if before is None:
            new = {**first, **document_by_chance(chance)}
            if chance.random() < 0.2:
                new.pop("$x", None)
                new = doubled(*new.items(), (_TWICE, 1), (_TWICE, {"a": 1}))
            collection.insert_one(new)
            return
        # No command replaces a document that has a field twice and one that begins with $.
        names = [each for each in NAMES if each != "$x" or _TWICE not in before]
        name, value = chance.choice(names), value_by_chance(chance, 2)
        path = ".".join(chance.choice(("a", "b", "0", "1")) for _ in range(chance.randrange(1, 4)))
        field = {"field": {"$literal": name}, "input": "$$ROOT"}
        update: Any
        # A whole document from Python would have one of two fields with one name.
        match chance.randrange(3 if _TWICE in before else 0, 9):
            case 1:
                after = {**first, **document_by_chance(chance)}
                update = [{"$replaceWith": {"$literal": after}}]
            case 0 | 2:
                after = {**first, **changed_by_chance(chance, {**before, "_id": 0, "pad": 0})}
                update = [{"$replaceWith": {"$literal": {**after, **first}}}]
            case 3:
                collection.delete_one(one)
                return
            case 4:
                update = {"$set": {path: value}}
            case 5:
                update = {"$push": {path: value}}
            case 6:
                update = [{"$replaceWith": {"$setField": {**field, "value": {"$literal": value}}}}]
            case 7:
                update = [{"$replaceWith": {"$unsetField": field}}]
            case _:
                update = {"$unset": {path: 1}}
        collection.update_one(one, update)
