"""The start parameters, each declared once: at the field of the settings that it sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

MILLISECONDS: Final = 0.001
MINUTES: Final = 60.0
_LONGEST: Final = 365 * 24 * 60 * MINUTES
"""The longest time that a parameter can set, in seconds."""
_UNBOUNDED: Final = 2**62
_METADATA: Final = "parameter"


def boolean(value: Any) -> bool:
    """Return whether ``value`` is true, as mongos reads it; raises ValueError."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"1", "true"}:
        return True
    if text in {"0", "false"}:
        return False
    raise ValueError(f"must be true or false, not {value!r}")


def one_of(*allowed: str) -> Callable[[Any], str]:
    """Return a function that accepts the allowed words only; it raises ValueError."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
        return str(value)

    return read


def whole(value: Any) -> int:
    """Return ``value`` as a whole number; raises ValueError."""
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"must be a whole number, not {value!r}") from None


def number(value: Any) -> float:
    """Return ``value`` as a number; raises ValueError."""
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None


_READERS: Final[Mapping[type, Callable[[Any], Any]]] = {bool: boolean, int: whole, float: number}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One start parameter: its name, its default and its bounds, in its own unit.

    ``purpose`` is a sentence for the documentation. ``unit`` is expressed in that of the settings:
    seconds or bytes.
    """

    name: str
    read: Callable[[Any], Any]
    default: Any
    purpose: str
    least: float = 0
    most: float = _UNBOUNDED
    unit: float = 1

    def parse(self, given: Any) -> Any:
        """Return ``given`` as this parameter's type; raises ValueError, which names the fault."""
        try:
            value = self.read(given)
        except ValueError as error:
            raise ValueError(f"parameter {self.name} {error}") from error
        if not isinstance(value, str) and not self.least <= value <= self.most:
            bounds = f"from {self.least:.15g} to {self.most:.15g}"
            if self.most >= _UNBOUNDED:
                bounds = f"{self.least:.15g} or more"
            raise ValueError(f"parameter {self.name} must be {bounds}, not {value}")
        return value

    def in_settings(self, value: Any) -> Any:
        """Return a value of the parameter in the unit of the settings."""
        return value * self.unit if isinstance(value, float) else value


def declared(
    name: str,
    default: Any,
    purpose: str,
    *,
    read: Callable[[Any], Any] | None = None,
    unit: float = 1,
    least: float = 0,
    most: float | None = None,
) -> Parameter:
    """Return the parameter of a setting; its type is that of the setting's ``default``.

    Args:
        name: the parameter's name.
        default: the setting's default, in the unit of the settings.
        purpose: what the parameter is for, a sentence.
        read: reads a value, if not by the default's type; raises ValueError.
        unit: the parameter's unit, expressed in that of the settings.
        least: the smallest value of the parameter.
        most: the largest value; a year if None and the unit is one of time.
    """
    if most is None:
        most = _LONGEST / unit if unit in {MILLISECONDS, MINUTES} else _UNBOUNDED
    shown = round(default / unit, 6) if isinstance(default, float) else default
    return Parameter(name, read or _READERS[type(default)], shown, purpose, least, most, unit)


def parameter(name: str, default: Any, purpose: str, **bounds: Any) -> Any:
    """Return a dataclass's field that a start parameter sets; arguments as for ``declared``."""
    return field(default=default, metadata={_METADATA: declared(name, default, purpose, **bounds)})


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
