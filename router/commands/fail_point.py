"""One fail point: a switch that makes commands fail in tests, with mongos's modes and counting."""

import random
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from bson.decimal128 import Decimal128

from router.request.field_errors import wrong_type_inside
from router.request.generic_fields import exact_integer
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_MOST = 2**31 - 1
_MODE_FORMS = (
    "'mode' must be one of 'off', 'alwaysOn', '{times:n}', '{skip:n}' or "
    "'{activationProbability:p}'"
)


class _Mode(Enum):
    OFF = "off"
    ALWAYS_ON = "alwaysOn"
    TIMES = "times"
    SKIP = "skip"
    RANDOM = "activationProbability"


class FailPoint:
    """One fail point: off until configured, then firing according to its mode.

    ``times_entered`` counts its firings since the process began. ``changed`` is set by each change
    that the other processes need.

    Args:
        chance: returns random numbers from 0 to 1, for the mode ``{activationProbability: p}``.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.times_entered = 0
        self.changed = False
        self._chance = chance
        self._mode = _Mode.OFF
        self._number = 0.0
        self._data: Mapping[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether the fail point can still fire."""
        return self._mode is not _Mode.OFF

    def configure(self, command: Mapping[str, Any]) -> int:
        """Set the mode and the data of a configureFailPoint command.

        Returns the number of firings so far.

        Raises:
            CommandError: the mode is missing, or the mode or the data is invalid; nothing changes.
        """
        mode, number = _read_mode(command)
        data = command.get("data", {})
        if not isinstance(data, Mapping | list):
            raise CommandError(ErrorCode.TypeMismatch, "the 'data' option must be a JSON object")
        self._mode, self._number = mode, number
        self.changed = True
        self._data = data if isinstance(data, Mapping) else {}
        return self.times_entered

    def enter(self, concerned: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any] | None:
        """Return the data if the fail point fires, else None.

        Args:
            concerned: takes the data and returns whether the fail point applies to the caller;
                a call to which it does not apply does not count.
        """
        if not self.active or not concerned(self._data) or not self._fires():
            return None
        self.times_entered += 1
        return self._data

    def mode(self) -> object:
        """Return the mode that makes another fail point continue as this one would."""
        if self._mode in (_Mode.OFF, _Mode.ALWAYS_ON):
            return self._mode.value
        number = self._number if self._mode is _Mode.RANDOM else int(self._number)
        return {self._mode.value: number}

    @property
    def data(self) -> Mapping[str, Any]:
        """The configured data."""
        return self._data

    def _fires(self) -> bool:
        self.changed = True
        if self._mode is _Mode.TIMES:
            self._number -= 1
            if self._number <= 0:
                self._mode = _Mode.OFF
        elif self._mode is _Mode.SKIP and self._number > 0:
            self._number -= 1
            return False
        elif self._mode is _Mode.RANDOM:
            return self._chance() < self._number
        return True


def _read_mode(command: Mapping[str, Any]) -> tuple[_Mode, float]:
    mode = command.get("mode")
    if "mode" not in command:
        raise CommandError(
            ErrorCode.IllegalOperation, "When setting a failpoint, you must supply a 'mode'"
        )
    if mode in ("off", "alwaysOn"):
        return _Mode(mode), 0
    if isinstance(mode, str):
        raise CommandError(ErrorCode.BadValue, f"unknown mode: {mode}")
    if not isinstance(mode, Mapping):
        raise CommandError(ErrorCode.TypeMismatch, "'mode' must be a string or JSON object")
    if "times" in mode:
        return _Mode.TIMES, _count(mode, "times")
    if "skip" in mode:
        return _Mode.SKIP, _count(mode, "skip")
    if "activationProbability" in mode:
        return _Mode.RANDOM, _probability(mode["activationProbability"])
    raise CommandError(ErrorCode.BadValue, _MODE_FORMS)


def _count(mode: Mapping[str, Any], name: str) -> int:
    value = integer_field(mode, name)
    if value < 0:
        raise CommandError(ErrorCode.BadValue, f"'{name}' option to 'mode' must be positive")
    if value > _MOST:
        raise CommandError(ErrorCode.BadValue, f"'{name}' option to 'mode' is too large")
    return value


def _probability(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(
            ErrorCode.TypeMismatch,
            "the 'activationProbability' option to 'mode' must be a double between 0 and 1",
        )
    number = float(value.to_decimal() if isinstance(value, Decimal128) else value)
    if not 0 <= number <= 1:
        raise CommandError(
            ErrorCode.BadValue,
            f"activationProbability must be between 0.0 and 1.0; found {number:g}",
        )
    return number


def integer_field(document: Mapping[str, Any], name: str) -> int:
    """Return a field that must hold a whole number of any numeric type.

    Raises:
        CommandError: TypeMismatch, it is not a number; BadValue, it is not whole.
    """
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise wrong_type_inside(name, value, "number")
    return exact_integer(value, name)
