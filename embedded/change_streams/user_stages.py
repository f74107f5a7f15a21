"""The client's stages after ``$changeStream``, applied to one event at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from embedded.change_streams.collation import Fold, folding
from embedded.storage.bson_values import MISSING
from embedded.storage.expressions import EMPTY, Expression
from embedded.storage.projection import add_fields, project, unset
from embedded.storage.queries import Matcher
from embedded.storage.shell_text import document_text
from embedded.storage.type_names import type_name
from shard_client.errors import CommandError

Stage = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Returns the changed event, or None for an event that is filtered out."""

_Test = Callable[[dict[str, Any]], bool]
SPLIT: Final = "$changeStreamSplitLargeEvent"
_BANNED: Final = frozenset(
    {
        "$bucket",
        "$bucketAuto",
        "$collStats",
        "$count",
        "$currentOp",
        "$densify",
        "$documents",
        "$facet",
        "$fill",
        "$geoNear",
        "$graphLookup",
        "$group",
        "$indexStats",
        "$limit",
        "$listLocalSessions",
        "$listSessions",
        "$lookup",
        "$merge",
        "$out",
        "$planCacheStats",
        "$sample",
        "$search",
        "$searchMeta",
        "$setWindowFields",
        "$shardedDataDistribution",
        "$skip",
        "$sort",
        "$sortByCount",
        "$unionWith",
        "$unwind",
        "$vectorSearch",
    }
)


class UserStages:
    """The compiled stages of one stream (docs/protocol.md#opening).

    The leading ``$match`` stages that do not refer to images run before images are looked up, so
    that a missing required image of a filtered event raises no error. Conditions on
    ``fullDocument`` refer to an image in events of updates only.

    Args:
        stages: the stages after ``$changeStream``.
        variables: the values of the command's ``let``.
        fold: the folding of the command's collation, for the filters.

    Raises:
        CommandError: a stage is malformed.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        variables: Mapping[str, Any] = EMPTY,
        fold: Fold | None = None,
    ) -> None:
        self.splits = bool(stages) and SPLIT in stages[-1]
        own = stages[:-1] if self.splits else stages
        early = _leading_matches(own, without="fullDocument")
        unless_updated = _leading_matches(own, without="fullDocumentBeforeChange")
        compiled = [_compiled(stage, variables, fold) for stage in own]
        self._early = compiled[:early]
        self._early_unless_updated = compiled[:unless_updated]
        self._late = compiled[early:]

    @classmethod
    def of(cls, stages: Sequence[Any], command: Mapping[str, Any]) -> Self:
        """Compile stages with the ``let`` and the ``collation`` of an aggregate command."""
        return cls(stages, _variables(command.get("let")), folding(command.get("collation")))

    def wants(self, document: dict[str, Any]) -> bool:
        """Return whether the event passes the stages that run before images are looked up."""
        updated = document.get("operationType") == "update"
        stages = self._early if updated else self._early_unless_updated
        return all(stage(document) is not None for stage in stages)

    def apply(self, document: dict[str, Any]) -> dict[str, Any] | None:
        """Return the event after the remaining stages, None if it is filtered out."""
        current: dict[str, Any] | None = document
        for stage in self._late:
            if current is None:
                break
            current = stage(current)
        return current


def _leading_matches(stages: Sequence[Mapping[str, Any]], without: str) -> int:
    """Return how many of the first stages are ``$match`` stages that do not contain a name."""
    count = 0
    for stage in stages:
        if "$match" not in stage or without in repr(stage):
            break
        count += 1
    return count


def _variables(let: Any) -> dict[str, Any]:
    """Return the values of a command's ``let``; its expressions do not refer to a document."""
    if let is None:
        return {}
    if not isinstance(let, Mapping):
        raise CommandError(
            14,
            f"BSON field 'aggregate.let' is the wrong type '{type_name(let)}', expected type "
            "'object'",
            code_name="TypeMismatch",
        )
    return {name: Expression(value).evaluate({}) for name, value in let.items()}


def is_single_document(stage: Mapping[str, Any]) -> bool:
    """Return whether change streams permit the stage."""
    return next(iter(stage)) in _STAGES


def check_stages(pipeline: Any) -> None:
    """Check what servers check before they parse single stages.

    Raises:
        CommandError: with the server's codes and messages (docs/protocol.md#opening).
    """
    if not isinstance(pipeline, list):
        raise CommandError(14, "A pipeline must be an array of objects", code_name="TypeMismatch")
    for stage in pipeline:
        if not isinstance(stage, Mapping):
            raise CommandError(
                14,
                "Each element of the 'pipeline' array must be an object",
                code_name="TypeMismatch",
            )
        if len(stage) != 1:
            raise CommandError(
                40323, "A pipeline stage specification object must contain exactly one field."
            )
        name = next(iter(stage))
        if name not in _STAGES and name not in _BANNED and name not in (SPLIT, "$changeStream"):
            raise CommandError(40324, f"Unrecognized pipeline stage name: '{name}'")
    if "$changeStream" not in pipeline[0] or any("$changeStream" in s for s in pipeline[1:]):
        _refuse_elsewhere(pipeline)
    for stage in pipeline[1:]:
        name = next(iter(stage))
        if name in _BANNED:
            raise CommandError(
                20,
                f"{name} is not permitted in a $changeStream pipeline",
                code_name="IllegalOperation",
            )
    _check_split(pipeline)


def _refuse_elsewhere(pipeline: Sequence[Mapping[str, Any]]) -> None:
    if any("$changeStream" in stage for stage in pipeline):
        raise CommandError(
            40602,
            "$_internalChangeStreamOplogMatch is only valid as the first stage in a pipeline",
        )
    raise CommandError(
        20, f"{SPLIT} can only be used in a $changeStream pipeline", code_name="IllegalOperation"
    )


def _check_split(pipeline: Sequence[Mapping[str, Any]]) -> None:
    for place, stage in enumerate(pipeline):
        if SPLIT not in stage:
            continue
        if not isinstance(stage[SPLIT], Mapping) or stage[SPLIT]:
            raise CommandError(7182800, f"{SPLIT} spec should be an empty object")
        if place != len(pipeline) - 1:
            raise CommandError(7182802, f"{SPLIT} must be the last stage in the pipeline")


def _compiled(stage: Mapping[str, Any], variables: Mapping[str, Any], fold: Fold | None) -> Stage:
    [(name, argument)] = stage.items()
    if name == "$match":
        return _match(argument, variables, fold)
    return _STAGES[name](argument, variables)


def _match(condition: Any, variables: Mapping[str, Any], fold: Fold | None = None) -> Stage:
    wanted = _predicate(condition, variables, fold)
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
        elif name.startswith("$") and name not in _TOP_LEVEL:
            raise CommandError(
                2,
                f"unknown top level operator: {name}. If you have a field name that starts with a "
                "'$' symbol, consider using $getField or $setField.",
                code_name="BadValue",
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
_TOP_LEVEL: Final = frozenset(
    {"$and", "$or", "$nor", "$comment", "$jsonSchema", "$alwaysTrue", "$alwaysFalse"}
)


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

    def redacted(document: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any] | None:
        verdict = expression.evaluate(document)
        if verdict == "KEEP":
            return dict(document)
        if verdict == "PRUNE":
            return None
        if verdict != "DESCEND":
            raise CommandError(
                17053,
                "$redact's expression should not return anything aside from "
                "the variables $$KEEP, $$DESCEND, and $$PRUNE",
            )
        return {name: kept for name, value in document.items() for kept in _descend(value, root)}

    def _descend(value: Any, root: Mapping[str, Any]) -> list[Any]:
        """Return the rest of a value as a list of one value, or an empty list if it is pruned."""
        if isinstance(value, Mapping):
            inner = redacted(value, root)
            return [] if inner is None else [inner]
        if isinstance(value, list):
            return [[kept for item in value for kept in _descend(item, root)]]
        return [value]

    return lambda document: redacted(document, document)


def _unchanged(argument: Any, _variables: Mapping[str, Any]) -> Stage:
    """Compile an internal stage that is open to clients and leaves events as they are."""
    if argument != {}:
        raise CommandError(9, "the stage takes an empty object", code_name="FailedToParse")
    return lambda document: document


_STAGES: Final[dict[str, Callable[[Any, Mapping[str, Any]], Stage]]] = {
    "$match": _match,
    "$project": project,
    "$addFields": add_fields,
    "$set": add_fields,
    "$unset": unset,
    "$replaceRoot": _replace_root,
    "$replaceWith": _replace_with,
    "$redact": _redact,
    "$_internalInhibitOptimization": _unchanged,
    "$_internalShredDocuments": _unchanged,
}
