"""The ``$changeStream`` stage of an aggregate command, parsed and checked as mongod does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from embedded.change_streams.resume_token import ResumeToken
from embedded.storage.shell_text import document_text
from embedded.storage.type_names import type_name
from shard_client.errors import CommandError

IMAGE_MODES: Final = {
    "fullDocument": ("default", "updateLookup", "whenAvailable", "required"),
    "fullDocumentBeforeChange": ("off", "whenAvailable", "required"),
}
_TOKENS: Final = frozenset({"resumeAfter", "startAfter"})
_FLAGS: Final = frozenset(
    {
        "allChangesForCluster",
        "allowToRunOnConfigDB",
        "allowToRunOnSystemNS",
        "showExpandedEvents",
        "showMigrationEvents",
        "showRawUpdateDescription",
        "showSystemEvents",
    }
)
_FLAGS_OF_7: Final = frozenset({"matchCollectionUUIDForUpdateLookup"})


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The parsed ``$changeStream`` stage (docs/protocol.md#opening).

    ``collection`` is None for a database or the whole cluster. ``token`` is the start: a high water
    mark, or the token of the last event that the client has; None for now.
    """

    database: str
    collection: str | None
    cluster: bool
    token: ResumeToken | None
    full_document: str
    before_change: str
    flags: frozenset[str]

    @property
    def namespace(self) -> str:
        """The namespace of the cursor: ``db.coll`` or ``db.$cmd.aggregate``."""
        return f"{self.database}.{self.collection or '$cmd.aggregate'}"

    @property
    def expanded(self) -> bool:
        """Whether the client requested the expanded events."""
        return "showExpandedEvents" in self.flags


def parse_request(
    database: str, collection: str | None, stage: Mapping[str, Any], version: int
) -> StreamRequest:
    """Parse a pipeline's first stage, ``{$changeStream: {...}}``.

    ``version`` is the version of the tokens that the stream makes.

    Raises:
        CommandError: with the server's codes and messages (docs/protocol.md#opening).
    """
    spec = stage["$changeStream"]
    if not isinstance(spec, Mapping):
        raise CommandError(
            6188500,
            f"$changeStream must take a nested object but found: $changeStream: "
            f"{document_text(spec)}",
        )
    options = _checked_fields(spec, version)
    flags = frozenset(name for name, value in options.items() if value is True)
    _check_namespace(database, collection, flags)
    token = _start(options, version, collection is not None)
    return StreamRequest(
        database,
        collection,
        database == "admin",
        token,
        options.get("fullDocument", "default"),
        options.get("fullDocumentBeforeChange", "off"),
        flags,
    )


def _checked_fields(spec: Mapping[str, Any], version: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in spec.items():
        if name in IMAGE_MODES:
            _expect(name, value, "string")
            if value not in IMAGE_MODES[name]:
                raise CommandError(
                    2,
                    f"Enumeration value '{value}' for field '$changeStream.{name}' is not a "
                    "valid value.",
                    code_name="BadValue",
                )
        elif name in _TOKENS:
            _expect(name, value, "object")
        elif name == "startAtOperationTime":
            _expect(name, value, "timestamp")
        elif name in _FLAGS or (version >= 2 and name in _FLAGS_OF_7):
            _expect_bool(name, value)
        else:
            raise CommandError(
                40415,
                f"BSON field '$changeStream.{name}' is an unknown field.",
                code_name="Location40415",
            )
        options[name] = value
    return options


def _expect(name: str, value: Any, wanted: str) -> None:
    found = type_name(value)
    if found != wanted:
        raise CommandError(
            14,
            f"BSON field '$changeStream.{name}' is the wrong type '{found}', expected type "
            f"'{wanted}'",
            code_name="TypeMismatch",
        )


def _expect_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise CommandError(
            14,
            f"Field '{name}' should be a boolean value, but found: {type_name(value)}",
            code_name="TypeMismatch",
        )


def _check_namespace(database: str, collection: str | None, flags: frozenset[str]) -> None:
    namespace = f"{database}.{collection or '$cmd.aggregate'}"
    if "allChangesForCluster" in flags and (database != "admin" or collection is not None):
        raise CommandError(
            72,
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' "
            f"database, and with no collection name; found {namespace}",
            code_name="InvalidOptions",
        )
    banned = {
        "admin": "allChangesForCluster" not in flags,
        "config": "allowToRunOnConfigDB" not in flags,
        "local": True,
    }
    if banned.get(database, False):
        raise CommandError(
            73,
            f"$changeStream may not be opened on the internal {database} database",
            code_name="InvalidNamespace",
        )
    if (collection or "").startswith("system.") and "allowToRunOnSystemNS" not in flags:
        raise CommandError(
            73,
            f"$changeStream may not be opened on the internal {namespace} collection",
            code_name="InvalidNamespace",
        )


def _start(options: Mapping[str, Any], version: int, single: bool) -> ResumeToken | None:
    if options.keys() >= _TOKENS:
        raise CommandError(
            50865,
            "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage",
        )
    at: Timestamp | None = options.get("startAtOperationTime")
    raw = options.get("resumeAfter", options.get("startAfter"))
    if raw is None:
        return None if at is None else ResumeToken.high_water_mark(at, version)
    token = ResumeToken.parse(raw)
    if at is not None:
        raise CommandError(
            40674, "Only one type of resume option is allowed, but multiple were found"
        )
    if "resumeAfter" in options and token.from_invalidate:
        raise CommandError(
            260,
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an "
            "invalidate notification",
            code_name="InvalidResumeToken",
        )
    if single and token.uuid is None and not token.is_high_water_mark:
        raise CommandError(
            260,
            "Attempted to resume a single-collection stream, but the resume token does not "
            "include a UUID",
            code_name="InvalidResumeToken",
        )
    return token
