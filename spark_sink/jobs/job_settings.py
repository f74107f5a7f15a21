"""The settings of a job, for its file, for the flags of `job run`, and for `Job` in Python.

Each is declared once: a setting `verify_every` is the flag `--verify-every`, the key `verify-every`
of the file, and the argument `verify_every` of `Job`. Its docstring is the flag's help.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from spark_sink.errors import OptionError
from spark_sink.options.parsers import DEFAULT_URI

if TYPE_CHECKING:
    from spark_sink.jobs.job_folder import JobFolder, JobRecord

Table = Literal["bronze", "current", "messages", "transactions"]
_LONGEST = 200  # characters of a value in a message


def pairs_of(texts: Any) -> Any:
    """Return values by name, from texts NAME=VALUE or from a file's mapping. Raises ValueError.

    A value in a file may be a boolean, a list or a mapping, which becomes JSON.
    """
    if isinstance(texts, dict):
        values = (bool, list, dict)
        return {n: json.dumps(v) if isinstance(v, values) else v for n, v in texts.items()}
    if not isinstance(texts, list | tuple):
        return texts
    for text in texts:
        if not isinstance(text, str) or "=" not in text[1:]:
            raise ValueError(f"{text!r} has no value: write NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def seconds_of(text: Any) -> Any:
    """Return the seconds of a time such as 90s, 30m, 1h or 1d. Raises ValueError."""
    units = r"(\d+)\s*([smhd]|(?:second|minute|hour|day)s?)"
    match = re.fullmatch(units, text.strip()) if isinstance(text, str) else None
    if not match or not int(match[1]):
        raise ValueError(f"{text!r} is not a time: write 90s, 30m, 1h or 1d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2][0]]


def interval_of(text: str) -> str:
    """Return the time between two batches, which Spark reads. Raises ValueError."""
    part = r"\d+ +(millisecond|second|minute|hour|day)s?"
    if not re.fullmatch(rf"{part}( +{part})*", text.strip()):
        raise ValueError(f"{text!r} is not a time: write 500 milliseconds, 10 seconds or 1 minute")
    return text.strip()


Pairs = Annotated[dict[str, str], BeforeValidator(pairs_of)]
Duration = Annotated[float, BeforeValidator(seconds_of)]


class CollectionSettings(BaseModel):
    """What differs between collections: their tables, columns and fields."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        coerce_numbers_to_str=True,
        use_attribute_docstrings=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    option: Pairs = {}
    """NAME=VALUE: an option of the source. May be repeated."""
    table: tuple[Table, ...] = ("bronze", "current")
    """A table to write: bronze, current, messages or transactions. May be repeated. Default: bronze
    and current."""
    message: Pairs = {}
    """With --table messages: NAME=VALUE, an option of Debezium's messages, such as prefix=shop,
    which is required. May be repeated."""
    columns: str = Field(default="none", alias="schema")
    """The columns of the current table: infer (from the documents), none (the documents as JSON and
    BSON), or a file with a schema, as Spark's DDL or JSON."""
    deletes: Literal["hard", "soft"] = "hard"
    """Whether a delete removes a row (hard), or marks it as _deleted (soft)."""
    flatten: bool = False
    """With --schema: make columns such as address_city of the fields of documents in documents."""
    exclude: tuple[str, ...] = ()
    """The path of a field to leave out, such as card.number. May be repeated."""
    mask: Pairs = {}
    """PATH=RULE: hide the values of a field, by the rule hash, truncate=N or constant=TEXT. May be
    repeated."""
    rename: Pairs = {}
    """PATH=NAME: the new name of a field. May be repeated."""
    salt_file: str | None = None
    """With --mask PATH=hash: a file with the salt, 16 bytes or more."""

    def require_all_that_belongs(self) -> None:
        """Raise ValueError for a setting without the one that it belongs to."""
        if self.flatten and self.columns == "none":
            raise ValueError("--flatten is for tables with --schema: give both")
        if self.message and "messages" not in self.table:
            raise ValueError("--message is for --table messages: give both")
        if "messages" in self.table and "prefix" not in map(str.lower, self.message):
            raise ValueError(
                "--table messages needs the first part of topics: --message prefix=NAME"
            )

    def record(self, namespaces: tuple[str, ...]) -> JobRecord:
        """Return the record of a job of these collections. Raises OptionError."""
        from spark_sink.debezium.message_batches import table_options
        from spark_sink.jobs.job_folder import JobRecord
        from spark_sink.options.scope import namespace_options
        from spark_sink.options.stream_options import named_options

        if "messages" in self.table:
            table_options(self.message)
        lists = {
            "field.exclude.list": [f"*.*.{path}" for path in self.exclude],
            "field.masks": [f"*.*.{path}:{rule}" for path, rule in self.mask.items()],
            "field.renames": [f"*.*.{path}:{name}" for path, name in self.rename.items()],
        }
        for entry in (entry for entries in lists.values() for entry in entries):
            if "," in entry:
                raise OptionError(
                    f"--exclude, --mask and --rename allow no comma: {entry.removeprefix('*.*.')}"
                )
        edits = {name: ",".join(entries) for name, entries in lists.items() if entries}
        if self.salt_file:
            edits["field.masks.salt.file"] = self.salt_file
        given = named_options(self.option)
        for name, remedy in {
            "uri": "use --uri, or the variable MERGEROUTER_URI",
            "uriFile": "use --uri, or the variable MERGEROUTER_URI",
            "signalFolder": "a job has its own, for job signal",
            **dict.fromkeys(edits, "--exclude, --mask, --rename and --salt-file set it already"),
        }.items():
            if name in given:
                raise OptionError(f"--option cannot set {name}: {remedy}")
        options = {"snapshotMode": "initial", **edits, **given}
        return JobRecord(
            namespaces,
            {**namespace_options(namespaces), **options},
            self.table,
            schema_in(self.columns),
            self.deletes,
            self.flatten,
            messages=dict(self.message),
        )


class JobSettings(CollectionSettings):
    """All settings of a job; of several, if `collections` names them."""

    namespaces: tuple[str, ...] = ()
    """Collections (shop.orders) or databases (shop). Default: all of them."""
    out: str
    """The job's folder: a path, or a URI of Spark's."""
    collections: Annotated[
        dict[str, CollectionSettings],
        BeforeValidator(lambda parts: {n: part or {} for n, part in dict(parts).items()}),
    ] = {}
    """In a file alone: collections with settings of their own, each with a folder in out."""
    uri: str = Field(default_factory=lambda: os.environ.get("MERGEROUTER_URI") or DEFAULT_URI)
    """The router's connection string. With a password, set the variable MERGEROUTER_URI instead.
    Default: mongodb://127.0.0.1:27020."""
    trigger: Annotated[str, AfterValidator(interval_of)] = "10 seconds"
    """Time from the start of one batch to the next. Default: 10 seconds."""
    conf: Pairs = {}
    """NAME=VALUE: a setting of Spark. May be repeated."""
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Offer metrics to Prometheus on this port of 127.0.0.1; of several collections, on this port
    and the following ones."""
    maintain: Duration | None = None
    """The time from one job compact, within this job, to the next, such as 6h. Default: never."""
    keep_files: Duration | None = None
    """How long files that a batch has replaced are kept for their readers, such as 6h. Default: an
    hour."""
    configdb: str | None = None
    """Start a router beside the job, on the port of --uri, if none answers there: the config
    server, rsName/host:port."""
    upstream: str | None = None
    """With --configdb: the mongos, mongodb://host:port."""
    router_config: str | None = None
    """Instead of --configdb, where the cluster has users or TLS: the router's configuration file,
    as for serve --config."""
    checkpoint: str = ""
    """Its folder, if Spark cannot write it to --out."""
    verify_every: Duration | None = None
    """Compare the current table with the collections, range by range: the time from the start of
    one round to the next, such as 1h."""
    verify_rate: int = Field(default=1000, ge=1)
    """Rows and keys a second that a round compares, on average. Default: 1000."""
    repair: bool = False
    """Read documents again that a round finds to differ."""

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        if self.repair and self.verify_every is None:
            raise ValueError("--repair belongs to --verify-every: give both")
        if self.upstream and not (self.configdb or self.router_config):
            raise ValueError("--upstream belongs to --configdb: give both")
        if self.collections and self.namespaces:
            raise ValueError("namespaces and collections exclude each other: set one of them")
        for name, part in self.parts.items():
            try:
                part.require_all_that_belongs()
                if self.verify_every is not None and "current" not in part.table:
                    raise ValueError(
                        "--verify-every compares the current table: add --table current"
                    )
            except ValueError as error:
                raise ValueError(f"{name}: {error}" if name else str(error)) from None
        return self

    @property
    def parts(self) -> Mapping[str, CollectionSettings]:
        """The settings by the names of folders in `out`; the name of a single job is empty.

        A collection inherits from the job what it does not set.
        """
        if not self.collections:
            return {"": self}
        shared = {name: getattr(self, name) for name in CollectionSettings.model_fields}
        return {
            name: own.model_copy(
                update={n: shared[n] for n in shared.keys() - own.model_fields_set}
            )
            for name, own in self.collections.items()
        }

    def jobs(self) -> list[tuple[JobFolder, JobRecord]]:
        """Return the folder and the record of each job. Raises OptionError."""
        from spark_sink.jobs.job_folder import JobFolder

        jobs = []
        for name, part in self.parts.items():
            inside = f"/{name}" if name else ""
            record = part.record((name,) if name else self.namespaces)
            checkpoint = f"{self.checkpoint}{inside}" if self.checkpoint else ""
            jobs.append((JobFolder(f"{self.out}{inside}", checkpoint), record))
        return jobs


def load_job_settings(given: Mapping[str, Any], file: str | None = None) -> JobSettings:
    """Return the validated settings: those of a job's file, which `given` ones override.

    Raises OptionError, which names the setting, the fault and the remedy.
    """
    in_file: Any = {}
    if file is not None:
        try:
            in_file = yaml.safe_load(Path(file).read_text()) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise OptionError(f"the file {file} cannot be read as YAML", error) from None
        if not isinstance(in_file, dict):
            raise OptionError(f"the file {file} must have names with values, such as out: orders")
    names = {field.alias: name for name, field in JobSettings.model_fields.items()}
    settings = {names.get(name, name): value for name, value in (*in_file.items(), *given.items())}
    try:
        return JobSettings.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(map(_described, error.errors()))
        raise OptionError(f"{file}: {problems}" if file else problems) from None


def _described(problem: Any) -> str:
    """Return one of pydantic's problems: the setting, the fault and the remedy."""
    aliases = {name: str(field.alias) for name, field in JobSettings.model_fields.items()}
    path = [aliases.get(part, part) for part in problem["loc"] if isinstance(part, str)]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        within = CollectionSettings if len(path) > 1 else JobSettings
        known = [str(field.alias) for field in within.model_fields.values()]
        close = get_close_matches(path[-1], known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(sorted(known))}."
        return f"{name} is not a setting. {hint}"
    if problem["type"] == "missing":
        return f"{name} is missing: name the job's folder, with --out or in the file"
    message = problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if problem["type"] == "value_error":
        return f"{name}: {message}" if name else str(message)
    return f"{name} {message}, not {str(problem['input'])[:_LONGEST]!r}"


def schema_in(given: str) -> str:
    """Return "none", "infer", or the schema in the file of --schema. Raises OptionError."""
    if given in ("none", "infer"):
        return given
    from spark_sink.rows.row_schema import is_json_schema, require_types

    try:
        text = Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"--schema must be infer, none, or a file that can be read, not {given!r}", error
        ) from None
    try:
        if not is_json_schema(text):
            require_types(text)
    except ValueError as error:
        raise OptionError(f"--schema {given}: {error}") from None
    return text
