"""Times, sizes and reasons in words."""

from typing import Final

_MEGABYTE: Final = 1024 * 1024
_REASONS: Final = {
    "idle": "nothing new to report",
    "behind": "it has more to read",
    "paused": "clients read slowly or pause",
}


def in_words(seconds: float | None) -> str:
    """Return a time span for people: "0.4 s", "12 s", "3 min", "5.2 h", "2.1 d"."""
    if seconds is None:
        return "—"
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 10:
        return f"{sign}{seconds:.1f} s"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            digits = 1 if unit > 60 and seconds < 10 * unit else 0
            return f"{sign}{seconds / unit:.{digits}f} {name}"
    return f"{sign}{seconds:.0f} s"


def in_scope(namespace: str) -> str:
    """Return what a stream watches: "whole cluster", "all of shop", "shop.orders"."""
    database, _, collection = namespace.partition(".")
    if collection != "$cmd.aggregate":
        return namespace
    return "whole cluster" if database == "admin" else f"all of {database}"


def in_reason(reason: str | None) -> str:
    """Return why a stream waits for a shard (``Remote.slowest_reason``), for people."""
    return "" if reason is None else _REASONS.get(reason, reason)


def in_wait(reason: str, streams: int) -> str:
    """Return how many streams wait for a shard and why: "2 streams wait for it: reconnecting"."""
    wait = "stream waits" if streams == 1 else "streams wait"
    return f"{streams} {wait} for it: {in_reason(reason)}"


def in_rate(rate: float) -> str:
    """Return events a second for people: "0", "0.4", "12", "1,300"."""
    return f"{rate:.1f}" if 0 < rate < 9.95 else f"{rate:,.0f}"


def in_bytes(size: float) -> str:
    """Return a size for people: "0", "12 KiB", "1.1 MiB", "1.5 GiB"."""
    if size < _MEGABYTE:
        return f"{max(1, round(size / 1024))} KiB" if size else "0"
    if size >= 1024 * _MEGABYTE:
        return f"{size / (1024 * _MEGABYTE):,.1f} GiB"
    return f"{size / _MEGABYTE:.1f} MiB"
