"""Collations, limited to case and accents; there are no rules of particular languages."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from embedded.storage.document_stages import Fold

_DEFAULT_STRENGTH = 3


def folding(collation: Mapping[str, Any] | None) -> Fold | None:
    """Return the folding that an aggregate's ``collation`` applies to strings, None for no folding.

    It applies to equality and order in filters, not to expressions.
    """
    strength = (collation or {}).get("strength", _DEFAULT_STRENGTH)
    if not collation or collation["locale"] == "simple" or strength >= _DEFAULT_STRENGTH:
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
