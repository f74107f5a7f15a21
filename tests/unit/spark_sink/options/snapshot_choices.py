"""Custom snapshot modes, as a user writes them."""

from spark_sink.options.snapshot_options import QueryStart

asked: list[QueryStart] = []


def only_after_a_checkpoint(start: QueryStart) -> str:
    asked.append(start)
    return "no_data" if start.checkpoint is None else "always"


def fails(start: QueryStart) -> str:
    raise KeyError("settings")


def chooses_none(start: QueryStart) -> str:
    return "custom"
