"""Snapshot modes: when a query reads documents, and whether events follow them.

The names are those of Debezium's `snapshot.mode`. A custom mode is a Python function that chooses
one of the other modes at each start of the query, from what the checkpoint says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from bson.timestamp import Timestamp

from spark_sink.errors import OptionError

BASED = "snapshot.mode.configuration.based"
"""The prefix of the options of the mode configuration_based."""

CUSTOM_NAME = "snapshot.mode.custom.name"


@dataclass(frozen=True)
class SnapshotPolicy:
    """When a query reads documents.

    at_first: a query without a checkpoint begins with a snapshot; at_every_start: every start of
    the query does; if_history_is_lost: a snapshot takes the place of events that the oplogs no
    longer hold; streams: events follow.
    """

    at_first: bool = False
    at_every_start: bool = False
    if_history_is_lost: bool = False
    streams: bool = True

    @property
    def reads_documents(self) -> bool:
        """Whether there may be a snapshot."""
        return self.at_first or self.at_every_start or self.if_history_is_lost


POLICIES: Mapping[str, SnapshotPolicy] = {
    "no_data": SnapshotPolicy(),
    "initial": SnapshotPolicy(at_first=True),
    "initial_only": SnapshotPolicy(at_first=True, streams=False),
    "always": SnapshotPolicy(at_first=True, at_every_start=True),
    "when_needed": SnapshotPolicy(at_first=True, if_history_is_lost=True),
}
"""The modes that need no further options."""

CONFIGURATION_BASED, CUSTOM = "configuration_based", "custom"
MODES = (*POLICIES, CONFIGURATION_BASED, CUSTOM)


@dataclass(frozen=True)
class QueryStart:
    """What a custom snapshot mode is told about a start of the query.

    checkpoint: the cluster time that the checkpoint has reached, None for a query without one;
    snapshot_in_progress: whether an earlier start left a snapshot unfinished, which this one goes
    on with in any case.
    """

    checkpoint: Timestamp | None
    snapshot_in_progress: bool


def custom_mode(name: str) -> Callable[[QueryStart], str]:
    """The function that is named as `module:function`. Raises OptionError if there is none."""
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise OptionError(f"option {CUSTOM_NAME!r}: must be module:function, not {name!r}")
    try:
        function: Callable[[QueryStart], str] = getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"option {CUSTOM_NAME!r}: {name} cannot be imported on the driver: put its module on "
            "PYTHONPATH there, or hand it over by --py-files",
            error,
        ) from None
    if not callable(function):
        raise OptionError(f"option {CUSTOM_NAME!r}: {name} is no function")
    return function


def chosen_policy(name: str, start: QueryStart) -> SnapshotPolicy:
    """The policy that the custom mode `name` chooses for a start of the query.

    Raises OptionError if the function cannot be imported, fails, or returns no mode.
    """
    function = custom_mode(name)
    try:
        mode = function(start)
    except Exception as error:  # the user's function may raise anything
        raise OptionError(
            f"option {CUSTOM_NAME!r}: {name} failed with {type(error).__name__}: correct it", error
        ) from error
    if mode not in POLICIES:
        raise OptionError(
            f"option {CUSTOM_NAME!r}: {name} must return one of {', '.join(POLICIES)}, not {mode!r}"
        )
    return POLICIES[mode]
