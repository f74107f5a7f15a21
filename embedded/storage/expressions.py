"""Aggregation expressions over one document: mongomock's, with BSON's comparisons."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final

import bson
from mongomock import aggregate as mongomock_aggregate

from embedded.errors import CommandError
from embedded.storage.bson_values import MISSING
from embedded.storage.mongomock_rules import library_errors
from embedded.storage.ordering import sort_key
from shard_client.bson.values import type_name

EMPTY: Final[Mapping[str, Any]] = {}
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "$eq": lambda a, b: a == b,
    "$ne": lambda a, b: a != b,
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
    "$cmp": lambda a, b: (a > b) - (a < b),
}
_BELOW_ALL: Final = (-2, 0)


class Expression:
    """An expression, compiled once and evaluated for many documents.

    ``variables`` are available as ``$$name``.

    Raises:
        CommandError: 168 for an unknown operator at any depth.
    """

    def __init__(self, expression: Any, variables: Mapping[str, Any] = EMPTY) -> None:
        _check_operators(expression)
        self._expression = expression
        self._variables = dict(variables)

    def evaluate(self, document: Mapping[str, Any]) -> Any:
        """Return the value for ``document``, ``MISSING`` if there is none.

        Raises:
            CommandError: an operator has invalid arguments.
        """
        if self._expression == "$$REMOVE":
            return MISSING
        with library_errors():
            try:
                evaluation = _Evaluation(document, self._variables, True)  # type: ignore[no-untyped-call]
                return evaluation.parse(self._expression)
            except KeyError:
                return MISSING

    def true_for(self, document: Mapping[str, Any]) -> bool:
        """Return whether the value for ``document`` is true: not false, null, zero or missing."""
        return _truth(self.evaluate(document))


def _truth(value: Any) -> bool:
    return value is not MISSING and value is not None and value is not False and value != 0


class _Evaluation(mongomock_aggregate._Parser):
    """mongomock's evaluation, with additions for missing operators and with BSON's comparisons."""

    def parse(self, expression: Any) -> Any:
        if isinstance(expression, list):
            return [None if item is MISSING else item for item in map(self._or_missing, expression)]
        if isinstance(expression, Mapping) and len(expression) == 1:
            [(name, argument)] = expression.items()
            if name in _COMPARE:
                left, right = (self._or_missing(item) for item in argument)
                return _COMPARE[name](_key(left), _key(right))
            operator = _OPERATORS.get(name)
            if operator is not None:
                return operator(self, argument)
        return super().parse(expression)  # type: ignore[no-untyped-call]

    def _or_missing(self, expression: Any) -> Any:
        try:
            return self.parse(expression)
        except KeyError:
            return MISSING

    def _in(self, argument: Any) -> bool:
        wanted, options = (self._or_missing(item) for item in argument)
        return isinstance(options, list) and _key(wanted) in [_key(item) for item in options]

    def _merge(self, argument: Any) -> dict[str, Any]:
        values = argument if isinstance(argument, list) else [argument]
        merged: dict[str, Any] = {}
        for value in map(self._or_missing, values):
            if isinstance(value, Mapping):
                merged.update(value)
        return merged

    def _and(self, argument: Any) -> bool:
        return all(_truth(self._or_missing(item)) for item in _as_list(argument))

    def _or(self, argument: Any) -> bool:
        return any(_truth(self._or_missing(item)) for item in _as_list(argument))

    def _not(self, argument: Any) -> bool:
        return not _truth(self._or_missing(_as_list(argument)[0]))

    def _if_null(self, argument: Any) -> Any:
        value: Any = MISSING
        for item in argument:
            value = self._or_missing(item)
            if value is not MISSING and value is not None:
                break
        return _or_raise(value)

    def _cond(self, argument: Any) -> Any:
        if isinstance(argument, Mapping):
            parts = (argument["if"], argument["then"], argument["else"])
        else:
            parts = tuple(argument)
        chosen = parts[1] if _truth(self._or_missing(parts[0])) else parts[2]
        return _or_raise(self._or_missing(chosen))

    def _bson_size(self, argument: Any) -> int | None:
        value = self._or_missing(_as_list(argument)[0])
        if value is MISSING or value is None:
            return None
        if not isinstance(value, Mapping):
            raise CommandError(
                31393, f"$bsonSize requires a document input, found: {type_name(value)}"
            )
        return len(bson.encode(value))


_OPERATORS: Final[dict[str, Callable[[_Evaluation, Any], Any]]] = {
    "$literal": lambda _, argument: argument,
    "$const": lambda _, argument: argument,
    "$in": _Evaluation._in,
    "$and": _Evaluation._and,
    "$or": _Evaluation._or,
    "$not": _Evaluation._not,
    "$cond": _Evaluation._cond,
    "$ifNull": _Evaluation._if_null,
    "$mergeObjects": _Evaluation._merge,
    "$bsonSize": _Evaluation._bson_size,
}


def _as_list(argument: Any) -> list[Any]:
    return argument if isinstance(argument, list) else [argument]


def _or_raise(value: Any) -> Any:
    if value is MISSING:
        raise KeyError
    return value


def _key(value: Any) -> Any:
    return _BELOW_ALL if value is MISSING else sort_key(value)


_KNOWN: Final = frozenset(
    {
        *_COMPARE,
        *_OPERATORS,
        *chain.from_iterable(
            names
            for group, names in vars(mongomock_aggregate).items()
            if group.endswith("_operators") and group != "group_operators"
        ),
        *("$avg", "$first", "$last", "$max", "$min", "$sum", "$setField", "$unsetField", "$rand"),
        *("$bsonSize", "$binarySize", "$dateAdd", "$dateDiff", "$dateSubtract", "$dateTrunc"),
        *("$sortArray", "$toHashedIndexKey", "$tsSecond", "$tsIncrement", "$sampleRate"),
    }
)


def _check_operators(expression: Any) -> None:
    if isinstance(expression, list):
        for item in expression:
            _check_operators(item)
    if not isinstance(expression, Mapping):
        return
    for name, argument in expression.items():
        if name in ("$literal", "$const"):
            continue
        if name.startswith("$") and name not in _KNOWN:
            raise CommandError(
                168, f"Unrecognized expression '{name}'", code_name="InvalidPipelineOperator"
            )
        _check_operators(argument)
