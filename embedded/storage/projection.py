"""``$project``, ``$addFields`` and ``$unset`` on one document, with MongoDB's field order."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from embedded.errors import CommandError
from embedded.storage.bson_values import MISSING
from embedded.storage.expressions import EMPTY, Expression

Transformation = Callable[[dict[str, Any]], dict[str, Any]]
_INCLUDE: Final = True
_EXCLUDE: Final = False


class _Node:
    """The changes of one (sub)document's fields; a leaf is a bool or an expression."""

    def __init__(self) -> None:
        self.children: dict[str, _Node | bool | Expression] = {}

    def put(self, path: str, leaf: "bool | Expression") -> None:
        first, _, rest = path.partition(".")
        if not rest:
            if first in self.children:
                raise _collision(path)
            self.children[first] = leaf
            return
        child = self.children.setdefault(first, _Node())
        if not isinstance(child, _Node):
            raise _collision(path)
        child.put(rest, leaf)

    def include(self, document: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named fields in the document's order, then the computed ones."""
        result: dict[str, Any] = {}
        for name, value in document.items():
            child = self.children.get(name, _EXCLUDE)
            if child is _INCLUDE:
                result[name] = value
            elif isinstance(child, _Node):
                projected = _each(value, partial(child.include, root=root))
                if projected is not MISSING:
                    result[name] = projected
        return self.compute(result, root, only_new=True)

    def exclude(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document without the named fields."""
        result: dict[str, Any] = {}
        for name, value in document.items():
            child = self.children.get(name, _INCLUDE)
            if child is _INCLUDE:
                result[name] = value
            elif isinstance(child, _Node):
                projected = _each(value, child.exclude)
                result[name] = value if projected is MISSING else projected
        return result

    def compute(
        self, document: Mapping[str, Any], root: Mapping[str, Any], *, only_new: bool = False
    ) -> dict[str, Any]:
        """Return the document with the expressions' values set; they are evaluated on ``root``."""
        result = dict(document)
        for name, child in self.children.items():
            if isinstance(child, Expression):
                value = child.evaluate(root)
                if value is not MISSING:
                    result[name] = value
                elif not only_new:
                    result.pop(name, None)
            elif (
                isinstance(child, _Node) and child.computes() and not (only_new and name in result)
            ):
                inner = result.get(name)
                projected = _each(inner, partial(child.compute, root=root))
                result[name] = child.compute({}, root) if projected is MISSING else projected
        return result

    def computes(self) -> bool:
        """Return whether this node or a descendant has an expression."""
        return any(
            isinstance(child, Expression) or (isinstance(child, _Node) and child.computes())
            for child in self.children.values()
        )


def _each(value: Any, apply: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Apply to a subdocument, or to those in an array; return ``MISSING`` for other values."""
    if isinstance(value, Mapping):
        return apply(value)
    if isinstance(value, list):
        items = [_each(item, apply) for item in value]
        return [item for item in items if item is not MISSING]
    return MISSING


def _collision(path: str) -> CommandError:
    return CommandError(31250, f"Invalid $project :: caused by :: Path collision at {path}")


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _flatten(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves by dotted path; subdocuments of the specification are paths too."""
    leaves: dict[str, Any] = {}
    for name, value in spec.items():
        path = f"{prefix}{name}"
        nested = isinstance(value, Mapping) and value and not next(iter(value)).startswith("$")
        leaves.update(_flatten(value, f"{path}.") if nested else {path: value})
    return leaves


def project(spec: Any, variables: Mapping[str, Any] = EMPTY) -> Transformation:
    """Return the transformation ``{$project: spec}``.

    Raises:
        CommandError: the specification is malformed.
    """
    if not isinstance(spec, Mapping):
        raise CommandError(15969, "$project specification must be an object")
    if not spec:
        raise CommandError(
            51272,
            "Invalid $project :: caused by :: projection specification must have at least one "
            "field",
        )
    leaves = _flatten(spec)
    flags = {path: bool(value) for path, value in leaves.items() if _is_flag(value)}
    named = {path: flag for path, flag in flags.items() if path != "_id"}
    others = set(named.values())
    if len(others) > 1:
        includes = next(iter(named.values()))
        odd = next(path for path, flag in named.items() if flag != includes)
        what = f"exclusion on field {odd} in inclusion"
        if not includes:
            what = f"inclusion on field {odd} in exclusion"
        raise CommandError(
            31254 if includes else 31253,
            f"Invalid $project :: caused by :: Cannot do {what} projection",
        )
    computed = any(path not in flags for path in leaves)
    node = _Node()
    if not computed and others <= {False} and flags.get("_id", False) is False:
        for path in leaves:
            node.put(path, _EXCLUDE)
        return node.exclude
    for path, value in {"_id": True, **leaves}.items():
        if path not in flags and path in leaves:
            node.put(path, Expression(value, variables))
        elif flags.get(path, True):
            node.put(path, _INCLUDE)
    return lambda document: node.include(document, document)


def add_fields(spec: Any, variables: Mapping[str, Any] = EMPTY) -> Transformation:
    """Return the transformation ``{$addFields: spec}``, also called ``$set``.

    Raises:
        CommandError: the specification is malformed.
    """
    if not isinstance(spec, Mapping):
        raise CommandError(40272, "$addFields specification stage must be an object")
    node = _Node()
    for path, value in _flatten(spec).items():
        node.put(path, Expression(value, variables))
    return lambda document: node.compute(document, document)


def unset(spec: Any, _variables: Mapping[str, Any] = EMPTY) -> Transformation:
    """Return the transformation ``{$unset: spec}``; ``spec`` is a path or a list of paths.

    Raises:
        CommandError: the specification is malformed.
    """
    paths = [spec] if isinstance(spec, str) else spec
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise CommandError(31002, "$unset specification must be a string or an array")
    node = _Node()
    for path in paths:
        node.put(path, _EXCLUDE)
    return node.exclude
