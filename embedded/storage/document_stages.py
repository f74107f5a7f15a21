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

_Test = Callable[[dict[str, Any]], bool]


def compiled(stage: Mapping[str, Any], variables: Mapping[str, Any] = EMPTY) -> Stage:
    """Compile a stage that is in ``DOCUMENT_STAGES``.

    Args:
        stage: ``{name: argument}``.
        variables: the values of the command's ``let``.

    Raises:
        CommandError: the argument is malformed.
    """
    [(name, argument)] = stage.items()
    return DOCUMENT_STAGES[name](argument, variables)


def _match(condition: Any, variables: Mapping[str, Any]) -> Stage:
    wanted = _predicate(condition, variables)
    return lambda document: document if wanted(document) else None


def _predicate(condition: Any, variables: Mapping[str, Any]) -> _Test:
    """Compile a filter; the logical operators and $expr are handled here."""
    if not isinstance(condition, Mapping):
        raise CommandError(15959, "the match filter must be an expression in an object")
    tests: list[_Test] = []
    plain: dict[str, Any] = {}
    for name, value in condition.items():
        if name == "$expr":
            tests.append(Expression(value, variables).true_for)
        elif name in _LOGIC and isinstance(value, list) and value:
            tests.append(_LOGIC[name]([_predicate(item, variables) for item in value]))
        elif name.startswith("$") and name != "$comment":
            raise bad_value(
                f"unknown top level operator: {name}. If you have a field name that starts with a "
                "'$' symbol, consider using $getField or $setField.",
            )
        else:
            plain[name] = value
    if plain:
        tests.append(Matcher(plain))
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


DOCUMENT_STAGES: Final[dict[str, Callable[[Any, Mapping[str, Any]], Stage]]] = {
    "$match": _match,
    "$project": project,
    "$addFields": add_fields,
    "$set": add_fields,
    "$unset": unset,
    "$replaceRoot": _replace_root,
    "$replaceWith": _replace_with,
}
"""The stages by name; change streams permit these."""
