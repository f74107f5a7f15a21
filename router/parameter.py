"""The start parameters, each declared once: at the field of the settings that it sets."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

MILLISECONDS: Final = 0.001
MINUTES: Final = 60.0
_LONGEST: Final = 365 * 24 * 60 * MINUTES
"""The longest time that a parameter can set, in seconds."""
_UNBOUNDED: Final = 2**62
_METADATA: Final = "parameter"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One start parameter: its name, its default and its bounds, in its own unit.

    ``kind`` is its type: bool, int, float or a Literal. ``purpose`` is a sentence for the
    documentation. ``unit`` is expressed in that of the settings: seconds or bytes.
    """

    name: str
    kind: Any
    default: Any
    purpose: str
    least: float = 0
    most: float = _UNBOUNDED
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
        name: the parameter's name.
        default: the setting's default, in the unit of the settings.
        purpose: what the parameter is for, a sentence.
        kind: its type, if that is not the default's: a Literal.
        unit: the parameter's unit, expressed in that of the settings.
        least: the smallest value of the parameter.
        most: the largest value; a year if None and the unit is one of time.
    """
    if most is None:
        most = round(_LONGEST / unit) if unit in {MILLISECONDS, MINUTES} else _UNBOUNDED
    shown = round(default / unit, 6) if isinstance(default, float) else default
    declared = Parameter(name, kind or type(default), shown, purpose, least, most, unit)
    return field(default=default, metadata={_METADATA: declared})


def milliseconds(name: str, default: float, purpose: str, **bounds: Any) -> Any:
    """Return a field of seconds that a start parameter sets in milliseconds; as ``parameter``."""
    return parameter(name, default, purpose, unit=MILLISECONDS, **bounds)


def parameters_of(settings: type) -> dict[str, Parameter]:
    """Return the parameters that set fields of a dataclass, by the name of the field."""
    return {
        each.name: each.metadata[_METADATA]
        for each in fields(settings)
        if _METADATA in each.metadata
    }


def fields_set_by(values: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return the fields of a dataclass that parameters set, in the units of the settings.

    Args:
        values: the values of all parameters by name, each in the parameter's own unit.
        settings: the dataclass.
    """
    return {
        field: values[each.name] if each.unit == 1 else values[each.name] * each.unit
        for field, each in parameters_of(settings).items()
    }
