"""Collations, limited to case and accents; there are no rules of particular languages."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from embedded.storage.type_names import type_name
from shard_client.errors import CommandError

Fold = Callable[[Any], Any]
"""Maps a value to one that is equal for all values that the collation compares as equal."""

_DEFAULT_STRENGTH = 3


def folding(collation: Any) -> Fold | None:
    """Return the folding that an aggregate's ``collation`` applies to strings, None for no folding.

    It applies to equality and order in filters, not to expressions.

    Raises:
        CommandError: the collation is not an object or has no locale.
    """
    if collation is None:
        return None
    if not isinstance(collation, Mapping):
        raise CommandError(
            14,
            f"BSON field 'aggregate.collation' is the wrong type '{type_name(collation)}', "
            "expected type 'object'",
            code_name="TypeMismatch",
        )
    if not collation:
        return None
    if "locale" not in collation:
        raise CommandError(
            40414,
            "BSON field 'collation.locale' is missing but a required field",
            code_name="Location40414",
        )
    strength = collation.get("strength", _DEFAULT_STRENGTH)
    if collation["locale"] == "simple" or strength >= _DEFAULT_STRENGTH:
        return None
    keeps_case, keeps_accents = bool(collation.get("caseLevel")), strength > 1

    def fold_text(text: str) -> str:
        if not keeps_accents:
            parts = unicodedata.normalize("NFD", text)
            text = "".join(part for part in parts if not unicodedata.combining(part))
        return text if keeps_case else text.casefold()

    return lambda value: _fold(value, fold_text)


def _fold(value: Any, fold_text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return fold_text(value)
    if isinstance(value, Mapping):
        # Regular expressions ignore the collation.
        return {
            name: item if name in ("$regex", "$options") else _fold(item, fold_text)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_fold(item, fold_text) for item in value]
    return value
