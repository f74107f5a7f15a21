"""The ``$v: 2`` diffs of the oplog, computed from updates.

A diff of a document has the sections ``d`` (deleted fields), ``u`` (changed), ``i`` (new), and
``s<field>`` for changes inside a field. A diff of an array has ``a: true``, ``l`` (new length),
``u<index>`` and ``s<index>``. Source: docs/protocol.md#events (updateDescription).
"""

from typing import Any

import bson

from embedded.storage.bson_values import MISSING, Document, child, identical, value_at

_ENTRY_OVERHEAD = 15
"""Bytes of ``{$v: 2, diff: ...}`` around a diff."""


def compute_diff(before: Document, after: Document) -> Document | None:
    """Return the diff that a pipeline update logs, None if the whole document is smaller."""
    diff = _document_diff(before, after, padding=_ENTRY_OVERHEAD)
    return diff if diff is not None and _size(diff) < _size(after) else None


def _size(document: Document) -> int:
    return len(bson.encode(document))


def _document_diff(before: Document, after: Document, padding: int = 0) -> Document | None:
    deleted: set[str] = set()
    updates: Document = {}
    inside: Document = {}
    old, new = list(before.items()), list(after.items())
    i = j = 0
    while i < len(old) and j < len(new):
        (name, value), (new_name, new_value) = old[i], new[j]
        i += 1
        if name != new_name:
            deleted.add(name)
            continue
        j += 1
        _compare(name, value, new_value, updates, inside)
    inserts = dict(new[j:])
    removals = {name: False for name, _ in old[i:]}
    removals |= dict.fromkeys(sorted(deleted - inserts.keys()), False)
    diff: Document = {}
    for section, content in (("d", removals), ("u", updates), ("i", inserts)):
        if content:
            diff[section] = content
    diff |= {"s" + name: sub for name, sub in inside.items()}
    return diff if _size(after) > _size(diff) + padding else None


def _compare(name: str, value: Any, new: Any, updates: Document, inside: Document) -> None:
    """Add the change from ``value`` to ``new``, if there is any, to one of the sections."""
    if identical(value, new):
        return
    sub = None
    if isinstance(value, dict) and isinstance(new, dict):
        sub = _document_diff(value, new)
    elif isinstance(value, list) and isinstance(new, list):
        sub = _array_diff(value, new)
    if sub is None:
        updates[name] = new
    else:
        inside[name] = sub


def _array_diff(before: list[Any], after: list[Any]) -> Document | None:
    diff: Document = {"a": True}
    if len(before) > len(after):
        diff["l"] = len(after)
    for index, new in enumerate(after):
        updates: Document = {}
        inside: Document = {}
        _compare("", before[index] if index < len(before) else MISSING, new, updates, inside)
        diff |= {f"u{index}": value for value in updates.values()}
        diff |= {f"s{index}": value for value in inside.values()}
    as_document = {str(index): value for index, value in enumerate(after)}
    return diff if _size(as_document) > _size(diff) else None


class DiffLog:
    """Records the effects of update operators path by path, and returns them as one diff.

    Like MongoDB, it logs the operations instead of comparing documents: a pushed element is a new
    index, and an array changed in another way is logged whole.
    """

    def __init__(self) -> None:
        self._root: _Node = _Node(is_array=False)

    def __bool__(self) -> bool:
        return self._root.touched

    def deleted(self, document: Document, path: list[str]) -> None:
        """Record a deleted field; ``document`` is the document before the update."""
        self._parent(document, path).deletes[path[-1]] = False

    def updated(self, document: Document, path: list[str], value: Any) -> None:
        """Record a new value of an existing field."""
        self._parent(document, path).updates[path[-1]] = value

    def created(self, before: Document, path: list[str], after: Document) -> None:
        """Record a new field with its new parents; ``after`` is the updated document."""
        holder: Any = before
        for depth, part in enumerate(path):
            if child(holder, part) is MISSING:
                prefix = path[: depth + 1]
                self._parent(before, prefix).inserts[part] = value_at(after, ".".join(prefix))
                return
            holder = child(holder, part)
        self.updated(before, path, value_at(after, ".".join(path)))

    def _parent(self, document: Document, path: list[str]) -> "_Node":
        self._root.touched = True
        node, holder = self._root, document
        for part in path[:-1]:
            holder = child(holder, part)
            node = node.inside.setdefault(part, _Node(is_array=isinstance(holder, list)))
        return node

    def diff(self) -> Document:
        """Return the diff of all recorded changes."""
        return self._root.diff()


class _Node:
    """The recorded changes directly inside one document or array."""

    def __init__(self, *, is_array: bool) -> None:
        self.is_array = is_array
        self.touched = False
        self.deletes: dict[str, bool] = {}
        self.updates: Document = {}
        self.inserts: Document = {}
        self.inside: dict[str, _Node] = {}

    def diff(self) -> Document:
        if self.is_array:
            changes = {**self.updates, **self.inserts}
            both = sorted({*changes, *self.inside}, key=int)
            return {"a": True} | {
                ("u" if index in changes else "s") + index: changes[index]
                if index in changes
                else self.inside[index].diff()
                for index in both
            }
        diff: Document = {}
        for section, content in (("d", self.deletes), ("u", self.updates), ("i", self.inserts)):
            if content:
                diff[section] = content
        return diff | {"s" + name: node.diff() for name, node in self.inside.items()}
