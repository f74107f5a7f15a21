"""The pipeline stages that change or filter one document at a time."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from embedded.errors import CommandError, bad_value
from embedded.storage.bson_values import MISSING
from embedded.storage.expressions import EMPTY, Expression
from embedded.storage.projection import add_fields, project, unset
from embedded.storage.queries import Matcher
from embedded.storage.shell_text import document_text
from shard_client.bson.values import type_name

Stage = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Returns the changed document, or None for one that is filtered out."""

Fold = Callable[[Any], Any]
"""Maps a value to one that is equal for all values that a collation compares as equal."""

_Test = Callable[[dict[str, Any]], bool]


def compiled(
    stage: Mapping[str, Any], variables: Mapping[str, Any] = EMPTY, fold: Fold | None = None
) -> Stage:
    """Compile a stage that is in ``DOCUMENT_STAGES``.

    Args:
        stage: ``{name: argument}``.
        variables: the values of the command's ``let``.
        fold: the folding of the command's collation, for filters.

    Raises:
        CommandError: the argument is malformed.
    """
    [(name, argument)] = stage.items()
    if name != "$match":
        return DOCUMENT_STAGES[name](argument, variables)
    wanted = _predicate(argument, variables, fold)
    return lambda document: document if wanted(document) else None


def _predicate(condition: Any, variables: Mapping[str, Any], fold: Fold | None) -> _Test:
    """Compile a filter; the logical operators and $expr are handled here."""
    if not isinstance(condition, Mapping):
        raise CommandError(15959, "the match filter must be an expression in an object")
    tests: list[_Test] = []
    plain: dict[str, Any] = {}
    for name, value in condition.items():
        if name == "$expr":
            tests.append(Expression(value, variables).true_for)
        elif name in _LOGIC and isinstance(value, list) and value:
            tests.append(_LOGIC[name]([_predicate(item, variables, fold) for item in value]))
        elif name.startswith("$") and name != "$comment":
            raise bad_value(
                f"unknown top level operator: {name}. If you have a field name that starts with a "
                "'$' symbol, consider using $getField or $setField.",
            )
        else:
            plain[name] = value
    if plain:
        matcher = Matcher(plain if fold is None else fold(plain))
        tests.append(matcher if fold is None else lambda document: matcher(fold(document)))
    return _all_of(tests)


def _all_of(tests: list[_Test]) -> _Test:
    return lambda document: all(test(document) for test in tests)


def _any_of(tests: list[_Test]) -> _Test:
    return lambda document: any(test(document) for test in tests)


def _none_of(tests: list[_Test]) -> _Test:
    return lambda document: not any(test(document) for test in tests)


_LOGIC: Final = {"$and": _all_of, "$or": _any_of, "$nor": _none_of}


def _replace_with(new_root: Any, variables: Mapping[str, Any]) -> Stage:
    expression = Expression(new_root, variables)

    def stage(document: dict[str, Any]) -> dict[str, Any] | None:
        root = expression.evaluate(document)
        if not isinstance(root, Mapping):
            raise CommandError(
                40228,
                "'newRoot' expression must evaluate to an object, but resulting value was: "
                f"{document_text(None if root is MISSING else root)}. Type of resulting value: "
                f"'{'missing' if root is MISSING else type_name(root)}'. Input document: "
                f"{document_text(document)}",
            )
        return dict(root)

    return stage


def _replace_root(argument: Any, variables: Mapping[str, Any]) -> Stage:
    if not isinstance(argument, Mapping) or "newRoot" not in argument:
        raise CommandError(40231, "no newRoot specified for the $replaceRoot stage")
    return _replace_with(argument["newRoot"], variables)


_VERDICTS: Final = {name: name for name in ("DESCEND", "PRUNE", "KEEP")}


def _redact(argument: Any, variables: Mapping[str, Any]) -> Stage:
    expression = Expression(argument, {**variables, **_VERDICTS})

    def redacted(document: Mapping[str, Any]) -> dict[str, Any] | None:
        verdict = expression.evaluate(document)
        if verdict == "KEEP":
            return dict(document)
        if verdict == "PRUNE":
            return None
        if verdict != "DESCEND":
            raise CommandError(17053, "$redact's expression returns none of its variables")
        return {name: kept for name, value in document.items() for kept in descend(value)}

    def descend(value: Any) -> list[Any]:
        """Return the rest of a value as a list of one value, or an empty list if it is pruned."""
        if isinstance(value, Mapping):
            inner = redacted(value)
            return [] if inner is None else [inner]
        if isinstance(value, list):
            return [[kept for item in value for kept in descend(item)]]
        return [value]

    return redacted


DOCUMENT_STAGES: Final[dict[str, Callable[[Any, Mapping[str, Any]], Stage]]] = {
    "$match": lambda condition, variables: compiled({"$match": condition}, variables),
    "$project": project,
    "$addFields": add_fields,
    "$set": add_fields,
    "$unset": unset,
    "$replaceRoot": _replace_root,
    "$replaceWith": _replace_with,
    "$redact": _redact,
}
"""The stages by name; change streams permit these."""
