"""A command's ``$readPreference``, as mongos checks it (docs/protocol.md#opening)."""

from collections.abc import Mapping
from typing import Any, Final

from router.bson_text import type_name
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_MODES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")
_LEAST_STALENESS: Final = 90
_BSON_TYPES: Final = {"maxStalenessSeconds": "long", "tags": "array", "tags.0": "object"}


def check_read_preference(value: Any) -> None:
    """Check the value of ``$readPreference``.

    Raises:
        CommandError: if it is not a document, its mode is missing or unknown, or its other fields
            are invalid or do not fit the mode.
    """
    if not isinstance(value, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"$readPreference has incorrect type: expected object but got {type_name(value)}",
        )
    mode = value.get("mode")
    if "mode" not in value:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "mode"')
    if not isinstance(mode, str):
        raise _wrong_type("mode", mode)
    if mode not in _MODES:
        modes = "', '".join(_MODES[:-1])
        raise CommandError(
            ErrorCode.BadValue,
            f"Could not parse $readPreference mode '{mode}'. Only the modes '{modes}', and "
            f"'{_MODES[-1]}' are supported. :: caused by :: Enumeration value '{mode}' for field "
            "'mode' is not a valid value.",
        )
    _check_tags(mode, value)
    _check_staleness(mode, value)


def _check_tags(mode: str, value: Mapping[str, Any]) -> None:
    tags = value.get("tags", [])
    if not isinstance(tags, list):
        raise _wrong_type("tags", tags)
    for each in tags:
        if not isinstance(each, Mapping):
            raise _wrong_type("tags.0", each)
        for name, tag in each.items():
            if not isinstance(tag, str):
                raise _wrong_type(name, tag)
    if mode == "primary" and tags not in ([], [{}]):
        raise CommandError(
            ErrorCode.BadValue, "Only empty tags are allowed with primary read preference"
        )


def _check_staleness(mode: str, value: Mapping[str, Any]) -> None:
    staleness = value.get("maxStalenessSeconds", 0)
    if isinstance(staleness, bool) or not isinstance(staleness, int | float):
        raise _wrong_type("maxStalenessSeconds", staleness)
    if staleness < 0:
        raise CommandError(ErrorCode.BadValue, "maxStalenessSeconds must be a non-negative integer")
    if 0 < staleness < _LEAST_STALENESS:
        raise CommandError(
            ErrorCode.MaxStalenessOutOfRange,
            f"maxStalenessSeconds value can not be less than {_LEAST_STALENESS}",
        )
    if staleness and mode == "primary":
        raise CommandError(
            ErrorCode.BadValue, "maxStalenessSeconds can not be set for the primary mode"
        )


def _wrong_type(name: str, value: Any) -> CommandError:
    expected = _BSON_TYPES.get(name, "string")
    return CommandError(
        ErrorCode.TypeMismatch,
        f'"{name}" had the wrong type. Expected {expected}, found {type_name(value)}',
    )
