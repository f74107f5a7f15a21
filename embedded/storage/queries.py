"""MongoDB's query language through mongomock, with BSON's types and order."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from bson.regex import Regex

from embedded.errors import CommandError, bad_value
from embedded.storage.bson_values import MISSING, Document, value_at
from embedded.storage.mongomock_rules import NOTHING, Filterer, library_errors
from embedded.storage.ordering import EMPTY_ARRAY, NULL, SortKey, sort_key
from shard_client.bson.values import MIN_KEY, TYPE_NAMES, type_name


class Matcher:
    """A compiled filter.

    Raises:
        CommandError: the filter is malformed.
    """

    def __init__(self, condition: Mapping[str, Any]) -> None:
        self.condition = condition
        self._equal: list[tuple[str, SortKey]] = []
        simple = all(_is_plain(name, value) for name, value in condition.items())
        if simple:
            self._equal = [(name, sort_key(value)) for name, value in condition.items()]
        self._normal = None if simple else _normalised(condition)
        if self._normal is not None:
            self._apply({})

    def __call__(self, document: Document) -> bool:
        """Return whether ``document`` matches."""
        if self._normal is not None:
            return self._apply(document)
        for name, wanted in self._equal:
            value = document.get(name, MISSING)
            if isinstance(value, list):
                if all(sort_key(item) != wanted for item in value):
                    return False
            elif value is MISSING or sort_key(value) != wanted:
                return False
        return True

    def _apply(self, document: Document) -> bool:
        with library_errors():
            try:
                return bool(_filterer.apply(self._normal, document))
            except KeyError:  # $expr referred to a field that this document lacks
                return False


def matches(condition: Mapping[str, Any], document: Document) -> bool:
    """Return whether ``document`` matches the filter ``condition``."""
    return Matcher(condition)(document)


def _is_plain(name: str, value: Any) -> bool:
    """Return whether this is a top-level field's equality with neither null nor an array."""
    return (
        not name.startswith("$")
        and "." not in name
        and value is not None
        and not isinstance(value, dict | list | Regex)
    )


_LOGICAL = frozenset({"$and", "$or", "$nor"})


def is_operators(value: Any) -> bool:
    """Return whether a filter's value is a document of operators rather than a value to compare."""
    return isinstance(value, Mapping) and bool(value) and next(iter(value)).startswith("$")


def _normalised(condition: Any) -> Any:
    """Replace equality by ``$eq`` and regular expressions by ``$regex``, at any depth."""
    if not isinstance(condition, Mapping):
        raise bad_value("the match filter must be an expression in an object")
    result: Document = {}
    for name, value in condition.items():
        if name in _LOGICAL:
            if not isinstance(value, list) or not value:
                raise bad_value(f"{name} argument must be a non-empty array")
            result[name] = [_normalised(item) for item in value]
        elif name.startswith("$"):
            result[name] = value
        elif isinstance(value, Regex):
            result[name] = {"$regex": value}
        elif is_operators(value) and "$ref" not in value:
            result[name] = {op: _operand(op, item) for op, item in value.items()}
        else:
            result[name] = {"$eq": value}
    return result


def _operand(operator: str, value: Any) -> Any:
    if operator == "$elemMatch" and isinstance(value, Mapping):
        if is_operators(value) and next(iter(value)) not in _LOGICAL:
            return {op: _operand(op, item) for op, item in value.items()}
        return _normalised(value)
    if operator == "$not" and isinstance(value, Mapping):
        return {op: _operand(op, item) for op, item in value.items()}
    return value


def _comparing(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Make a range operator, which compares values of one type and any element of an array."""

    def compare(value: Any, wanted: Any) -> bool:
        rank, body = sort_key(wanted)

        def single(item: Any) -> bool:
            item_rank, item_body = sort_key(item)
            return item_rank == rank and test(item_body, body)

        if value is NOTHING:
            return False
        if isinstance(value, list) and any(single(item) for item in value):
            return True
        return single(value)

    return compare


def _equal(value: Any, wanted: Any) -> bool:
    if value is NOTHING:
        return wanted is None
    if isinstance(wanted, Regex):
        return bool(_filterer.apply({"v": {"$regex": wanted}}, {"v": value}))
    key = sort_key(wanted)
    if isinstance(value, list) and any(sort_key(item) == key for item in value):
        return True
    return sort_key(value) == key


def _any_of(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, list | tuple):
        raise bad_value("$in needs an array")
    return any(_equal(value, item) for item in wanted)


def _modulo(value: Any, wanted: Any) -> bool:
    divisor, remainder = (int(number) for number in wanted)
    values = value if isinstance(value, list) else [value]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return any(int(number) % divisor == remainder for number in numbers)


_TYPES = {**TYPE_NAMES, -1: TYPE_NAMES[MIN_KEY]}


def _has_type(value: Any, wanted: Any) -> bool:
    """Return whether ``value``, or an element of it, has one of the ``$type``s ``wanted``."""
    names: set[str] = set()
    for kind in wanted if isinstance(wanted, list) else [wanted]:
        name = str(_TYPES.get(int(kind)) if isinstance(kind, int | float) else kind)
        if name == "number":
            names |= {"int", "long", "double", "decimal"}
        elif name in _TYPES.values():
            names.add(name)
        else:
            raise bad_value(f"Unknown type name alias: {kind}")
    if type_name(value) in names:
        return True
    return isinstance(value, list) and any(type_name(item) in names for item in value)


class _BsonFilterer(Filterer):  # type: ignore[misc]
    """mongomock's matcher with operators that support all BSON types."""

    def __init__(self) -> None:
        super().__init__()
        self._operator_map |= {
            "$eq": _equal,
            "$ne": lambda value, wanted: not _equal(value, wanted),
            "$in": _any_of,
            "$nin": lambda value, wanted: not _any_of(value, wanted),
            "$gt": _comparing(lambda a, b: a > b),
            "$gte": _comparing(lambda a, b: a >= b),
            "$lt": _comparing(lambda a, b: a < b),
            "$lte": _comparing(lambda a, b: a <= b),
            "$mod": lambda value, wanted: value is not NOTHING and _modulo(value, wanted),
            "$type": lambda value, wanted: value is not NOTHING and _has_type(value, wanted),
        }


_filterer: Any = _BsonFilterer()


def _key_at(path: str, direction: int, document: Document) -> SortKey:
    """Return the key to sort ``document`` by; of an array, its smallest or largest element."""
    value = value_at(document, path)
    if value is MISSING:
        parent, _, leaf = path.rpartition(".")
        holder = value_at(document, parent) if parent else MISSING
        if not isinstance(holder, list):
            return (NULL, 0)
        value = [item[leaf] for item in holder if isinstance(item, dict) and leaf in item]
    if not isinstance(value, list):
        return sort_key(value)
    if not value:
        return (EMPTY_ARRAY, 0)
    keys = [sort_key(item) for item in value]
    return min(keys) if direction > 0 else max(keys)


def sort_documents(documents: Iterable[Document], order: Mapping[str, int]) -> list[Document]:
    """Return the documents in a stable sort by ``order``, ``{path: 1 or -1, ...}``.

    Raises:
        CommandError: 15975 for another direction.
    """
    result = list(documents)
    for path, direction in reversed(list(order.items())):
        if direction not in (1, -1):
            raise CommandError(
                15975,
                f"$sort key ordering must be 1 (for ascending) or -1 (for descending): {path}",
            )
        if path == "$natural":
            if direction < 0:
                result.reverse()
            continue
        result.sort(key=partial(_key_at, path, direction), reverse=direction < 0)
    return result
