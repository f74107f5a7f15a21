"""The start parameters, each declared once: at the field of the settings that it sets."""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Final, NamedTuple

from pydantic import Field
from pydantic.fields import FieldInfo

MILLISECONDS: Final = 0.001
MINUTES: Final = 60.0
_LONGEST: Final = 365 * 24 * 60 * MINUTES
"""The longest time that a parameter can set, in seconds."""
_UNBOUNDED: Final = 2**62
_METADATA: Final = "parameter"


class Parameter(NamedTuple):
    """One start parameter.

    ``kind`` is its type: bool, int, float or a Literal. ``field`` has its default, its bounds and
    its description, in its own unit. ``unit`` is expressed in that of the settings: seconds or
    bytes.
    """

    name: str
    kind: Any
    field: FieldInfo
    unit: float = 1


def parameter(
    name: str,
    default: Any,
    purpose: str,
    *,
    kind: Any = None,
    unit: float = 1,
    least: float = 0,
    most: float | None = None,
) -> Any:
    """Return a dataclass's field that a start parameter sets; its type is that of the default.

    Args:
        default: the setting's default, in the unit of the settings.
        purpose: what the parameter is for, a sentence.
        kind: its type, if that is not the default's.
        unit: the parameter's unit, expressed in that of the settings.
        least: the smallest value of the parameter.
        most: the largest value; a year if None and the unit is one of time.
    """
    kind = kind or type(default)
    bounds: dict[str, Any] = {"description": purpose}
    shown = default
    if kind in (int, float):
        shown = kind(round(default / unit, 6))
        if most is None:
            most = round(_LONGEST / unit) if unit in {MILLISECONDS, MINUTES} else _UNBOUNDED
        bounds |= {"ge": least, "le": most}
    if kind is float:
        bounds["allow_inf_nan"] = False
    declared = Parameter(name, kind, Field(shown, **bounds), unit)
    return field(default=default, metadata={_METADATA: declared})


def milliseconds(name: str, default: float, purpose: str, **bounds: Any) -> Any:
    """Return a field of seconds that a start parameter sets in milliseconds; as ``parameter``."""
    return parameter(name, default, purpose, unit=MILLISECONDS, **bounds)


def parameters_of(settings: type) -> dict[str, Parameter]:
    """Return the parameters that set fields of a dataclass, by the name of the field."""
    return {
        field.name: field.metadata[_METADATA]
        for field in fields(settings)
        if _METADATA in field.metadata
    }


def fields_set_by(values: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return the fields of a dataclass that parameters set, in the units of the settings.

    ``values`` has all parameters by name, each in its own unit.
    """
    return {
        field: values[each.name] if each.unit == 1 else values[each.name] * each.unit
        for field, each in parameters_of(settings).items()
    }
