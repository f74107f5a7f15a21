"""Writes the references of metrics, settings and commands: ``python -m docs.reference``."""

import re
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic.fields import FieldInfo

from router.admin.formatting import in_bytes
from router.admin.metrics import ROWS, Row
from router.commands import fail_points  # noqa: F401 - adds its command
from router.commands.command import COMMANDS
from router.config.command_line import FLAGS, SETTINGS

DOCS = Path(__file__).parent
METRICS = DOCS / "metrics.md"
SETTINGS_PAGE = DOCS / "settings.md"
COMMANDS_PAGE = DOCS / "commands.md"

_METRICS_HEAD = """# Metrics

All metrics of `/metrics` on the [admin port](admin.md), written by `python -m docs.reference`. A
histogram has the suffixes `_bucket`, `_count` and `_sum`. Counters and histograms are those of each
worker since its start, gauges without the label `worker` those of all workers together.

| metric | type | labels | |
|---|---|---|---|
| `mergerouter_build_info` | gauge | mongodb_version, version | The router's version. |
"""
_SETTINGS_HEAD = """# Settings

All settings of `mergerouter serve`, written by `python -m docs.reference`.

A setting comes from a flag, else from the environment, else from the YAML file that `--config`
names, else it has its default. In the file, `net.port` is `port` in the section `net`, or the
dotted name itself. The environment variable is `MERGEROUTER_` and the name in capitals, with `__`
for each dot: `MERGEROUTER_NET__PORT`. An unknown name is an error, which names the nearest setting.
[`mergerouter check-config`](cli.md#check-config-before-a-start) tries the settings without a start.

| setting, flags | default | values | meaning |
|---|---|---|---|
"""
_PARAMETERS_HEAD = """
## Parameters

Start parameters, as mongos has them: `--setParameter name=value`, or `setParameter:` with names and
values in the file, or `MERGEROUTER_SETPARAMETER__MAXCURSORS=100` in the environment. Clients read
them with `getParameter`. With several workers, each has its share of the bounds on all streams
([workers](workers.md)).

| parameter | default | unit | values | meaning |
|---|---|---|---|---|
"""
_COMMANDS_HEAD = """# Commands of MongoDB

The commands that the router answers itself; written by `python -m docs.reference`. With
`--upstream`, all others pass through to the mongos, and so do those of these that concern nothing
of the router's, such as an `aggregate` without `$changeStream`; without it, others get 59
CommandNotFound. [Commands](cli.md) are those of the command line.

| command | | on the database | requires the action |
|---|---|---|---|
"""
_UNITS = {
    r"(Ms|MS|Millis)$|Millis(For|$)": "ms",
    r"Minutes$": "min",
    r"Secs$": "s",
    r"Bytes$": "bytes",
    r"PerSecond$": "1/s",
}
_OF_PARAMETERS = "setParameter."
_UNBOUNDED = 2**62
_TYPES = {str: "text", Path: "file", int: "whole number", float: "number", bool: "true, false"}


def metrics_reference() -> str:
    """Return the page of all metrics."""
    return _METRICS_HEAD + _lines(map(_metric_row, ROWS))


def settings_reference() -> str:
    """Return the page of all settings and parameters."""
    names = {name: name.partition(_OF_PARAMETERS)[2] for name in SETTINGS}
    settings = _lines(_setting_row(each, SETTINGS[each]) for each in names if not names[each])
    parameters = _lines(_row(name, SETTINGS[each]) for each, name in names.items() if name)
    return _SETTINGS_HEAD + settings + _PARAMETERS_HEAD + parameters


def commands_reference() -> str:
    """Return the page of all commands of MongoDB that the router answers."""
    answered = {command.names[0]: command for command in COMMANDS.values()}
    rows = (
        f"| {', '.join(f'`{each}`' for each in command.names)} | {command.help} "
        f"| {'admin' if command.admin_only else ''} | {command.action or ''} |"
        for name, command in sorted(answered.items())
        if not name.startswith("_")
    )
    return _COMMANDS_HEAD + _lines(rows)


def _lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _metric_row(row: Row) -> str:
    kind = row.kind(row.name, row.text).type
    name = f"mergerouter_{row.name}" + ("_total" if kind == "counter" else "")
    return f"| `{name}` | {kind} | {', '.join(sorted(row.labels))} | {row.text} |"


def _setting_row(name: str, field: FieldInfo) -> str:
    assert field.description, f"{name} has no docstring in its model"
    names = "<br>".join(f"`{each}`" for each in (name, *FLAGS.get(name, ())))
    default = _shown(field.get_default(call_default_factory=True))
    meaning = " ".join(field.description.split())
    return f"| {names} | {default} | {_values(field)} | {meaning} |"


def _row(name: str, field: FieldInfo) -> str:
    unit = next((unit for form, unit in _UNITS.items() if re.search(form, name)), "")
    default = _shown(field.default)
    if unit == "bytes" and field.default:
        default += f" ({in_bytes(float(field.default)).replace('.0 ', ' ')})"
    return f"| `{name}` | {default} | {unit} | {_values(field)} | {field.description} |"


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, float):
        text = f"{value:g}"
    return f"`{text}`"


def _values(field: FieldInfo) -> str:
    kinds = [each for each in get_args(field.annotation) if each is not NoneType]
    if kinds and all(isinstance(each, str) for each in kinds):
        return ", ".join(kinds)
    kind = _TYPES.get(kinds[0] if len(kinds) == 1 else field.annotation, "")  # type: ignore[arg-type]
    bounds = {
        bound: getattr(each, bound)
        for each in field.metadata
        for bound in ("ge", "le")
        if getattr(each, bound, _UNBOUNDED) < _UNBOUNDED
    }
    if "ge" not in bounds:
        return kind
    if "le" not in bounds:
        return f"{kind}, {bounds['ge']:.15g} or more"
    return f"{kind}, {bounds['ge']:.15g} to {bounds['le']:.15g}"


if __name__ == "__main__":
    METRICS.write_text(metrics_reference())
    SETTINGS_PAGE.write_text(settings_reference())
    COMMANDS_PAGE.write_text(commands_reference())
