"""Which conditions depend on a change event alone, and on which of its fields.

Such a condition has the same result wherever and whenever it is evaluated: on a shard before a
lookup, or by a second cursor. Everything else is unknown: random numbers (``$sampleRate``,
``$rand``), the time of day, JavaScript, and all variables. System variables may hold the time or
the whole event, and those of ``let`` are computed again for each cursor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from router.request.accepted import stage_name

_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})

_OF_A_VALUE: Final = frozenset(
    {
        "$bitsAllClear", "$bitsAllSet", "$bitsAnyClear", "$bitsAnySet", "$eq", "$exists", "$gt",
        "$gte", "$in", "$lt", "$lte", "$mod", "$ne", "$nin", "$options", "$regex", "$size", "$type",
    }
)  # fmt: skip
"""Match operators that compare the value at their path with constants."""

_TOTAL: Final = frozenset(
    {
        "$and", "$cmp", "$cond", "$eq", "$gt", "$gte", "$ifNull", "$isArray", "$isNumber", "$lt",
        "$lte", "$ne", "$not", "$or", "$toHashedIndexKey", "$type",
    }
)  # fmt: skip
"""Expression operators that depend only on their operands and accept any values."""

_PARTIAL: Final = frozenset(
    {
        "$abs", "$add", "$allElementsTrue", "$anyElementTrue", "$arrayElemAt", "$arrayToObject",
        "$binarySize", "$bsonSize", "$ceil", "$concat", "$concatArrays", "$convert", "$dateAdd",
        "$dateDiff", "$dateFromParts", "$dateFromString", "$dateSubtract", "$dateToParts",
        "$dateToString", "$dateTrunc", "$dayOfMonth", "$dayOfWeek", "$dayOfYear", "$divide", "$exp",
        "$first", "$floor", "$hour", "$in", "$indexOfArray", "$indexOfBytes", "$indexOfCP",
        "$isoDayOfWeek", "$isoWeek", "$isoWeekYear", "$last", "$ln", "$log", "$log10", "$ltrim",
        "$mergeObjects", "$millisecond", "$minute", "$mod", "$month", "$multiply", "$objectToArray",
        "$pow", "$range", "$regexMatch", "$reverseArray", "$round", "$rtrim", "$second",
        "$setDifference", "$setEquals", "$setIntersection", "$setIsSubset", "$setUnion", "$size",
        "$slice", "$split", "$sqrt", "$strLenBytes", "$strLenCP", "$strcasecmp", "$substrBytes",
        "$substrCP", "$subtract", "$switch", "$toBool", "$toDate", "$toDecimal", "$toDouble",
        "$toInt", "$toLong", "$toLower", "$toObjectId", "$toString", "$toUpper", "$trim", "$trunc",
        "$week", "$year",
    }
)  # fmt: skip
"""Expression operators that depend only on their operands and fail for some values."""

_MOST_FIELDS: Final = 2000
"""Most fields of the stages that are looked into."""

_VALUES_A_FIELD: Final = 64
"""Values of an array that take about as long as a field."""


@dataclass
class Reads:
    """What a condition reads of an event; each method returns False if it finds anything unknown.

    ``fields`` are the first fields of its paths. ``may_fail`` is whether it may fail, which ends
    the stream, for some values in them.
    """

    fields: set[str] = field(default_factory=set)
    may_fail: bool = False

    def condition(self, condition: Any) -> bool:
        """Add what a ``$match`` condition reads."""
        if not isinstance(condition, Mapping):
            return False
        for name, value in condition.items():
            if name in _LOGICAL:
                known = _are_documents(value) and all(map(self.condition, value))
            elif name == "$expr":
                known = self.expression(value)
            elif name.startswith("$"):
                known = name == "$comment"
            else:
                self.fields.add(name.partition(".")[0])
                known = _is_of_value(value)
            if not known:
                return False
        return True

    def expression(self, expression: Any) -> bool:
        """Add what an expression reads."""
        if isinstance(expression, Mapping):
            return all(self._operation(name, value) for name, value in expression.items())
        if isinstance(expression, (list, tuple)):
            return all(map(self.expression, expression))
        if isinstance(expression, str) and expression.startswith("$"):
            self.fields.add(expression[1:].partition(".")[0])
            return not expression.startswith("$$")
        return True

    def _operation(self, name: str, operand: Any) -> bool:
        if name == "$literal":
            return True
        if name in _PARTIAL:
            self.may_fail = True
        elif name.startswith("$") and name not in _TOTAL:
            return False
        return self.expression(operand)  # of an operator, of its named operand, or of a field


def early_part(
    stages: Sequence[Mapping[str, Any]],
    *,
    changed: Set[str],
    needed: Set[str],
    weaker: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Return stages that pass every event that ``stages`` pass, evaluated where events differ.

    There the fields ``changed`` have other values, and the fields ``needed`` must not be removed.
    The first stages are taken whole, as long as they are conditions that depend on other fields
    alone, or only remove fields; the second result is their number. The conditions of further
    stages follow if the stages before them leave their fields alone. Of these, one on fields
    ``changed`` is replaced by the ``weaker`` one, if that is given. From a very large stage on,
    nothing is looked into.

    A condition that is left out may guard others against values for which they fail. So beyond the
    first stages no condition is taken that may fail.
    """
    small = list(_small_stages(stages))

    def fits(condition: Mapping[str, Any]) -> bool:
        reads = reads_of(condition)
        return reads is not None and reads.fields.isdisjoint(changed)

    def is_early(stage: Mapping[str, Any]) -> bool:
        if stage_name(stage) == "$match":
            return fits(stage["$match"])
        removed = fields_removed(stage)
        return removed is not None and removed.isdisjoint(needed)

    early = list(takewhile(is_early, small))
    count = len(early)
    before: list[Mapping[str, Any]] = []
    for stage in small[count:]:
        if stage_name(stage) != "$match":
            before.append(stage)
            continue
        taken: list[Mapping[str, Any]] = []
        for condition in _conjuncts(stage["$match"], fits):
            reads = reads_of(condition)
            if reads is None or reads.may_fail:
                continue
            if not all(leaves_alone(stage, reads.fields) for stage in before):
                continue
            if fits(condition):
                taken.append(condition)
            elif weaker is not None:
                taken.append(weaker(condition))
        if taken:
            early.append({"$match": taken[0] if len(taken) == 1 else {"$and": taken}})
    return early, count


def _small_stages(stages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the first stages, as many as can be looked into in some milliseconds."""
    budget = _MOST_FIELDS
    for stage in stages:
        budget = _budget_after(stage, budget)
        if budget < 0:
            return
        yield stage


def reads_of(condition: Mapping[str, Any]) -> Reads | None:
    """Return what a ``$match`` condition reads of an event.

    Return None if it may depend on anything else, or has an operator that is not known here.
    """
    reads = Reads()
    return reads if reads.condition(condition) else None


def fields_used(stage: Mapping[str, Any]) -> Set[str] | None:
    """Return the first fields of the paths that a stage reads or writes, or None if it may use any.

    A stage that gives the event a new root keeps none of the other fields.
    """
    name = stage_name(stage)
    operand = stage[name]
    reads = Reads()
    if name == "$match":
        known = reads.condition(operand)
    elif name in ("$replaceRoot", "$replaceWith"):
        known = reads.expression(operand)
    elif name in ("$set", "$addFields", "$project") and isinstance(operand, Mapping):
        reads.fields.update(path.partition(".")[0] for path in operand)
        known = reads.expression(operand)
    else:
        return fields_removed(stage) if name == "$unset" else None
    return reads.fields if known else None


def leaves_alone(stage: Mapping[str, Any], fields: Set[str]) -> bool:
    """Return whether a stage certainly leaves these fields, named without a path, as they are."""
    name = stage_name(stage)
    operand = stage[name]
    if name == "$match":
        return True
    if name in ("$set", "$addFields") and isinstance(operand, Mapping):
        return fields.isdisjoint(path.partition(".")[0] for path in operand)
    removed = fields_removed(stage)
    if removed is not None:
        return fields.isdisjoint(removed)
    shown = operand if name == "$project" and isinstance(operand, Mapping) else {}
    return all(isinstance(shown.get(field), (bool, int)) and bool(shown[field]) for field in fields)


def fields_removed(stage: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the first fields of the paths that a stage removes, or None if it does anything else.

    Such a stage is an ``$unset``, or a ``$project`` in its exclusion form.
    """
    name = stage_name(stage)
    operand = stage[name]
    paths: Sequence[Any]
    if name == "$unset":
        paths = operand if isinstance(operand, (list, tuple)) else [operand]
    elif name == "$project" and isinstance(operand, Mapping):
        if not all(isinstance(value, (bool, int)) and not value for value in operand.values()):
            return None
        paths = list(operand)
    else:
        return None
    if not paths or not all(isinstance(path, str) for path in paths):
        return None
    return frozenset(path.partition(".")[0] for path in paths)


def _conjuncts(
    condition: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]
) -> Iterator[Mapping[str, Any]]:
    """Yield conditions whose conjunction is the whole condition, as small as they can be.

    A ``$nor`` holds if none of its operands does, so it is divided into one of the operands that
    fit and one of the others, as mongos divides it. An ``$or`` of one operand is that operand.
    """
    for name, value in condition.items():
        divided = _are_documents(value) and (name == "$and" or (name == "$or" and len(value) == 1))
        if divided:
            for operand in value:
                yield from _conjuncts(operand, fits)
        elif name == "$nor" and _are_documents(value):
            fitting = [operand for operand in value if fits(operand)]
            others = [operand for operand in value if not fits(operand)]
            yield from ({"$nor": operands} for operands in (fitting, others) if operands)
        else:
            yield {name: value}


def _budget_after(value: Any, budget: int) -> int:
    """Return ``budget`` less the value's fields on all levels; below 0 if it is raw."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, RawBSONDocument):
            return -1
        if isinstance(each, Mapping):
            budget -= len(each)
            waiting += islice(each.values(), max(0, budget) + 1)
        elif isinstance(each, (list, tuple)) and each:
            # A list of constants is passed over, or its values are looked at once.
            budget -= len(each) // _VALUES_A_FIELD
            if isinstance(each[0], (Mapping, list)):
                waiting += islice(each, max(0, budget) + 1)
        if budget < 0:
            break
    return budget


def _is_of_value(value: Any) -> bool:
    """Return whether the right side of ``path: value`` has known operators only."""
    if not isinstance(value, Mapping) or not any(name.startswith("$") for name in value):
        return True  # equality
    return all(_is_known_operator(name, operand) for name, operand in value.items())


def _is_known_operator(name: str, operand: Any) -> bool:
    if name == "$not":
        return _is_of_value(operand)
    if name == "$elemMatch":
        return _is_of_element(operand)
    if name == "$all":
        return isinstance(operand, (list, tuple)) and all(map(_is_of_value, operand))
    return name in _OF_A_VALUE


def _is_of_element(condition: Any) -> bool:
    """Return whether an ``$elemMatch``, of operators or of conditions, is known."""
    if not isinstance(condition, Mapping):
        return False
    first = next(iter(condition), "")
    if first.startswith("$") and first not in _LOGICAL:
        return _is_of_value(condition)
    return reads_of(condition) is not None


def _are_documents(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return bool(value) and all(isinstance(item, Mapping) for item in value)
