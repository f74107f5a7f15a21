"""The client's stages after ``$changeStream``, applied to one event at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from embedded.errors import CommandError, not_implemented
from embedded.storage.document_stages import DOCUMENT_STAGES, compiled
from embedded.storage.expressions import Expression

SPLIT: Final = "$changeStreamSplitLargeEvent"
_WITHOUT_EFFECT: Final = ("$_internalInhibitOptimization", "$_internalShredDocuments")


class UserStages:
    """The compiled stages of one stream (docs/protocol.md#opening).

    The leading ``$match`` stages that do not refer to images run before images are looked up, so
    that a missing required image of a filtered event raises no error. Conditions on
    ``fullDocument`` refer to an image in events of updates only.

    Args:
        stages: the stages after ``$changeStream``.
        variables: the values of the command's ``let``.

    Raises:
        CommandError: a stage is malformed; 40324 if change streams have no such stage.
    """

    def __init__(self, stages: Sequence[Any], variables: Mapping[str, Any]) -> None:
        self.splits = bool(stages) and SPLIT in stages[-1]
        unsplit = stages[:-1] if self.splits else stages
        effective = [stage for stage in unsplit if next(iter(stage)) not in _WITHOUT_EFFECT]
        for stage in effective:
            if next(iter(stage)) not in DOCUMENT_STAGES:
                raise CommandError(40324, f"Unrecognized pipeline stage name: '{[*stage]}'")
        early = _leading_matches(effective, without="fullDocument")
        unless_updated = _leading_matches(effective, without="fullDocumentBeforeChange")
        stages_run = [compiled(stage, variables) for stage in effective]
        self._early = stages_run[:early]
        self._early_unless_updated = stages_run[:unless_updated]
        self._late = stages_run[early:]

    @classmethod
    def of(cls, stages: Sequence[Any], command: Mapping[str, Any]) -> Self:
        """Compile stages with the ``let`` of an aggregate command.

        Raises:
            CommandError: 238 for a collation but the simple one; see the class.
        """
        if (command.get("collation") or {}).get("locale", "simple") != "simple":
            raise not_implemented("collations are not implemented")
        let = command.get("let") or {}
        variables = {name: Expression(value).evaluate({}) for name, value in let.items()}
        return cls(stages, variables)

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
