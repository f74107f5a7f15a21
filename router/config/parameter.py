"""One start parameter: its type, its bounds, and the limit that it sets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router.client_limits import ClientLimits
from router.stream_settings import StreamSettings

MILLISECONDS = 0.001
MINUTES = 60.0
_LONGEST = 365 * 24 * 60 * MINUTES
"""The longest time that a parameter can set, in seconds."""
_UNBOUNDED = 2**62


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


@dataclass(frozen=True, slots=True)
class Parameter:
    """One start parameter.

    ``limit`` is the field of StreamSettings that it sets, or of ClientLimits with ``of_clients``.
    ``unit`` is the parameter's unit, expressed in the field's unit (seconds or bytes). ``least``
    and ``most`` bound the parameter's own value.
    """

    name: str
    read: Callable[[Any], Any]
    default: Any
    purpose: str
    least: float = 0
    most: float = _UNBOUNDED
    limit: str | None = None
    of_clients: bool = False
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


def of_limits(
    defaults: StreamSettings | ClientLimits,
    name: str,
    limit: str,
    purpose: str,
    *,
    unit: float = 1,
    least: float = 0,
    most: float | None = None,
) -> Parameter:
    """Return the parameter that sets a field of the limits; its type is that of the default.

    Args:
        defaults: the limits with their defaults.
        name: the parameter's name.
        limit: the field's name.
        purpose: what the parameter is for, a sentence.
        unit: the parameter's unit, expressed in the field's unit.
        least: the smallest value of the parameter.
        most: the largest value; a year if None and the unit is one of time.
    """
    default = getattr(defaults, limit)
    read: Callable[[Any], Any] = whole
    if isinstance(default, bool):
        read = boolean
    elif isinstance(default, float):
        default = round(default / unit, 6)
        read = number
    if most is None:
        most = _LONGEST / unit if unit in {MILLISECONDS, MINUTES} else _UNBOUNDED
    return Parameter(
        name,
        read,
        default,
        purpose,
        least=least,
        most=most,
        limit=limit,
        unit=unit,
        of_clients=isinstance(defaults, ClientLimits),
    )
