"""A command's ``$readPreference``, as mongos checks it (docs/protocol.md#opening)."""

from collections.abc import Mapping
from typing import Any, Final

from router.bson_text import type_name
from router.request.field_errors import wrong_type_inside
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_MODES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")
_LEAST_STALENESS: Final = 90


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
        raise wrong_type_inside("mode", mode, "string")
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
        raise wrong_type_inside("tags", tags, "array")
    for each in tags:
        if not isinstance(each, Mapping):
            raise wrong_type_inside("tags.0", each, "object")
        for name, tag in each.items():
            if not isinstance(tag, str):
                raise wrong_type_inside(name, tag, "string")
    if mode == "primary" and tags not in ([], [{}]):
        raise CommandError(
            ErrorCode.BadValue, "Only empty tags are allowed with primary read preference"
        )


def _check_staleness(mode: str, value: Mapping[str, Any]) -> None:
    staleness = value.get("maxStalenessSeconds", 0)
    if isinstance(staleness, bool) or not isinstance(staleness, int | float):
        raise wrong_type_inside("maxStalenessSeconds", staleness, "long")
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
