"""The options of snapshots: when a query reads documents, which, and whether events follow them.

The names of modes are those of Debezium's `snapshot.mode`. A custom mode is a Python function that
chooses one of the others at each start of the query, from the state of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.errors import OptionError
from spark_sink.options import parsers
from spark_sink.options.declared import option, option_names, parsed, parsed_option

BASED = "snapshot.mode.configuration.based"
"""The prefix of the options of the mode configuration_based, which are fields of SnapshotPolicy."""

TASKS = "snapshotTasks"
"""The option for the number of tasks of a snapshot's batch."""

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

    at_first: bool = option(f"{BASED}.snapshot.data", parsers.boolean, False)
    at_every_start: bool = False
    if_history_is_lost: bool = option(f"{BASED}.snapshot.on.data.error", parsers.boolean, False)
    streams: bool = option(f"{BASED}.start.stream", parsers.boolean, False)

    @property
    def reads_documents(self) -> bool:
        """Whether there may be a snapshot."""
        return self.at_first or self.at_every_start or self.if_history_is_lost


POLICIES: Mapping[str, SnapshotPolicy] = {
    "no_data": SnapshotPolicy(streams=True),
    "initial": SnapshotPolicy(at_first=True, streams=True),
    "initial_only": SnapshotPolicy(at_first=True),
    "always": SnapshotPolicy(at_first=True, at_every_start=True, streams=True),
    "when_needed": SnapshotPolicy(at_first=True, if_history_is_lost=True, streams=True),
    "never": SnapshotPolicy(streams=True),
}
"""The modes that need no further options; never is Debezium's older name of no_data."""

ANY_POLICY = SnapshotPolicy(True, True, True, True)
"""What a function may choose: a query may read documents, and events."""

CONFIGURATION_BASED, CUSTOM = "configuration_based", "custom"
MODES = (*POLICIES, CONFIGURATION_BASED, CUSTOM)


@dataclass(frozen=True)
class QueryStart:
    """A start of the query, as a custom snapshot mode receives it.

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


_MODE = "snapshotMode"
_ON_HISTORY_LOST = "onHistoryLost"
# MongoDB has no schemas to read: these two have no effect.
_OF_SCHEMAS = (f"{BASED}.snapshot.schema", f"{BASED}.snapshot.on.schema.error")
_BASED_ON = (*option_names(SnapshotPolicy), *_OF_SCHEMAS)
MODE_OPTIONS = (_MODE, CUSTOM_NAME, *_BASED_ON, _ON_HISTORY_LOST)
"""The names of the options that say when a query reads documents."""


@dataclass(frozen=True)
class SnapshotOptions:
    """Whether and how the documents of the collections are read.

    Args:
        policy: when.
        custom: a function named `module:function` that chooses the policy of each start, if given.
        tasks: about how many a batch has, at least twice as many as Spark has cores.
        chunk_rows: about how many documents a task reads; None: 64 MiB of them.
        filters: on documents, by namespace; None if the option is not given.
        collections: regular expressions for whole names (`database.collection`), without regard to
            case, of the collections that are read; empty: all of the stream's.
        delay: least seconds from the query's start to its snapshot.
    """

    policy: SnapshotPolicy = POLICIES["no_data"]
    custom: str = option(CUSTOM_NAME, parsers.some_text, "")
    tasks: int = option(TASKS, parsers.positive, 64)
    chunk_rows: int | None = option("snapshotChunkRows", parsers.positive, None)
    filters: Mapping[str, Mapping[str, Any]] | None = option(
        "snapshotFilters", parsers.filters, None
    )
    collections: tuple[str, ...] = option("snapshot.include.collection.list", parsers.patterns, ())
    delay: float = option("snapshot.delay.ms", parsers.seconds, 0.0)

    def policy_for(self, start: QueryStart) -> SnapshotPolicy:
        """Return the policy for one start. Raises OptionError if a custom mode fails."""
        if not self.custom:
            return self.policy
        function = custom_mode(self.custom)
        try:
            mode = function(start)
        except Exception as error:  # the user's function may raise anything
            text = f"{self.custom} failed with {type(error).__name__}: correct it"
            raise OptionError(f"option {CUSTOM_NAME!r}: {text}", error) from error
        if mode not in POLICIES:
            names = ", ".join(POLICIES)
            raise OptionError(
                f"option {CUSTOM_NAME!r}: {self.custom} must return one of {names}, not {mode!r}"
            )
        return POLICIES[mode]


def snapshot_options(given: Mapping[str, str]) -> SnapshotOptions:
    """Return the options of snapshots among those given. Raises OptionError."""
    mode = parsed_option(_MODE, parsers.one_of(*MODES), given.get(_MODE, "no_data"))
    if (mode == CUSTOM) != (CUSTOM_NAME in given):
        raise OptionError(f"snapshot.mode=custom and option {CUSTOM_NAME!r} require each other")
    based_on = [name for name in _BASED_ON if name in given]
    if based_on and mode != CONFIGURATION_BASED:
        raise OptionError(
            f"option {based_on[0]!r} is for snapshot.mode={CONFIGURATION_BASED}: set that, or "
            "leave it out"
        )
    policy = ANY_POLICY if mode == CUSTOM else POLICIES.get(mode) or parsed(SnapshotPolicy, given)
    if not (policy.at_first or policy.streams):
        raise OptionError(
            f"snapshot.mode={CONFIGURATION_BASED} reads neither documents nor events: set "
            f"{BASED}.snapshot.data or {BASED}.start.stream to true"
        )
    if _ON_HISTORY_LOST in given:
        for other in {CUSTOM_NAME, f"{BASED}.snapshot.on.data.error"} & given.keys():
            raise OptionError(
                f"option {_ON_HISTORY_LOST!r}: option {other!r} already decides about a lost "
                "history: remove one of them"
            )
        parse = parsers.switch("fail", "snapshot")
        recovers = parsed_option(_ON_HISTORY_LOST, parse, given[_ON_HISTORY_LOST])
        policy = replace(policy, if_history_is_lost=recovers)
    return parsed(SnapshotOptions, given, policy=policy)
