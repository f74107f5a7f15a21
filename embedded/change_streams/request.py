"""The ``$changeStream`` stage of an aggregate command. The router has checked its options."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from embedded.errors import CommandError, ErrorCode
from shard_client.bson.resume_token import ResumeToken
from shard_client.bson.values import MalformedValueError

_OPTIONS = frozenset(
    {
        "allChangesForCluster", "allowToRunOnConfigDB", "allowToRunOnSystemNS", "fullDocument",
        "fullDocumentBeforeChange", "resumeAfter", "showExpandedEvents", "showMigrationEvents",
        "showRawUpdateDescription", "showSystemEvents", "startAfter", "startAtOperationTime",
    }
)  # fmt: skip


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
    database: str,
    collection: str | None,
    stage: Mapping[str, Any],
    version: int,
    more_options: Set[str],
) -> StreamRequest:
    """Parse a pipeline's first stage, ``{$changeStream: {...}}``.

    ``version`` is the version of the tokens that the stream makes; ``more_options`` are the options
    of the servers' version beyond those of all.

    Raises:
        CommandError: 40415 for an unknown option; a server's error for a malformed token.
    """
    options = stage["$changeStream"]
    for name in options:
        if name not in _OPTIONS and name not in more_options:
            raise CommandError(
                ErrorCode.IDLUnknownField, f"BSON field '$changeStream.{name}' is an unknown field."
            )
    at = options.get("startAtOperationTime")
    token = None if at is None else ResumeToken.high_water_mark(at, version)
    raw = options.get("resumeAfter", options.get("startAfter"))
    return StreamRequest(
        database,
        collection,
        database == "admin",
        token if raw is None else _token(raw),
        options.get("fullDocument", "default"),
        options.get("fullDocumentBeforeChange", "off"),
        frozenset(name for name, value in options.items() if value is True),
    )


def _token(document: Mapping[str, Any]) -> ResumeToken:
    try:
        return ResumeToken.parse(document)
    except MalformedValueError as error:
        raise CommandError(error.code, str(error)) from None
