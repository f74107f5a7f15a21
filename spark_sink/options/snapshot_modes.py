"""Snapshot modes: when a query reads documents, and whether events follow them.

The names are those of Debezium's `snapshot.mode`. A custom mode is a Python function that chooses
one of the other modes at each start of the query, from the state of the checkpoint.
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

    Args:
        at_first: at the first start, without a checkpoint.
        at_every_start: at every start.
        if_history_is_lost: in place of events that the oplogs no longer contain.
        streams: events follow.
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

    `checkpoint` is the cluster time of the checkpoint, None without one. A start always continues a
    snapshot in progress.
    """

    checkpoint: Timestamp | None
    snapshot_in_progress: bool


def custom_mode(name: str) -> Callable[[QueryStart], str]:
    """Return the function named `module:function`. Raises OptionError if there is none."""
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise OptionError(f"option {CUSTOM_NAME!r}: must be module:function, not {name!r}")
    try:
        function: Callable[[QueryStart], str] = getattr(import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"option {CUSTOM_NAME!r}: {name} cannot be imported on the driver: put its module on "
            "PYTHONPATH there, or add it with --py-files",
            error,
        ) from None
    if not callable(function):
        raise OptionError(f"option {CUSTOM_NAME!r}: {name} is not a function")
    return function


def chosen_policy(name: str, start: QueryStart) -> SnapshotPolicy:
    """Return the policy that the custom mode `name` chooses for a start of the query.

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
