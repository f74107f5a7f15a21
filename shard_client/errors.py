"""Errors of the wire protocol, the network and commands: their codes, and which may be retried."""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, Self


class ErrorCode(IntEnum):
    """Codes that the router handles or returns; the member's name is MongoDB's ``codeName``.

    Source: MongoDB's ``error_codes.yml``; docs/protocol.md#opening.
    """

    InternalError = 1
    BadValue = 2
    NoSuchKey = 4
    HostUnreachable = 6
    HostNotFound = 7
    FailedToParse = 9
    UserNotFound = 11
    UnsupportedFormat = 12
    Unauthorized = 13
    TypeMismatch = 14
    Overflow = 15
    InvalidLength = 16
    ProtocolError = 17
    AuthenticationFailed = 18
    IllegalOperation = 20
    LockTimeout = 24
    NamespaceNotFound = 26
    CursorNotFound = 43
    NoMatchingDocument = 47
    NamespaceExists = 48
    MaxTimeMSExpired = 50
    CommandNotFound = 59
    StaleShardVersion = 63
    ShardNotFound = 70
    InvalidOptions = 72
    InvalidNamespace = 73
    NetworkTimeout = 89
    ShutdownInProgress = 91
    OperationFailed = 96
    WriteConflict = 112
    FailedToSatisfyReadPreference = 133
    ReadConcernMajorityNotAvailableYet = 134
    CappedPositionLost = 136
    InvalidSSLConfiguration = 140
    SSLHandshakeFailed = 141
    CursorInUse = 143
    StaleEpoch = 150
    MaxStalenessOutOfRange = 160
    CommandNotSupportedOnView = 166
    QueryPlanKilled = 175
    ClientMetadataMissingField = 183
    ClientMetadataAppNameTooLarge = 184
    ClientMetadataDocumentTooLarge = 185
    ClientMetadataCannotBeMutated = 186
    PrimarySteppedDown = 189
    NetworkInterfaceExceededTimeLimit = 202
    TimeProofMismatch = 204
    ClusterTimeFailsRateLimiter = 205
    NoSuchSession = 206
    InvalidUUID = 207
    StaleClusterTime = 209
    KeyNotFound = 211
    RetryChangeStream = 234
    CursorKilled = 237
    SnapshotUnavailable = 246
    NoSuchTransaction = 251
    InvalidResumeToken = 260
    ExceededTimeLimit = 262
    OperationNotSupportedInTransaction = 263
    FailPointSetFailed = 266
    PreparedTransactionInProgress = 267
    ChangeStreamFatalError = 280
    ChangeStreamHistoryLost = 286
    APIVersionError = 322
    APIStrictError = 323
    MechanismUnavailable = 334
    APIMismatchError = 347
    UnsupportedOpQueryCommand = 352
    CollectionUUIDMismatch = 361
    TemporarilyUnavailable = 365
    SocketException = 9001
    LegacyNotPrimary = 10058
    NotWritablePrimary = 10107
    BSONObjectTooLarge = 10334
    InterruptedAtShutdown = 11600
    Interrupted = 11601
    InterruptedDueToReplStateChange = 11602
    StaleConfig = 13388
    NotPrimaryNoSecondaryOk = 13435
    NotPrimaryOrSecondary = 13436
    IDLDuplicateField = 40413
    IDLFailedToParse = 40414
    IDLUnknownField = 40415


NOT_PRIMARY_CODES: Final[frozenset[int]] = frozenset(
    {
        ErrorCode.InterruptedAtShutdown, ErrorCode.InterruptedDueToReplStateChange,
        ErrorCode.LegacyNotPrimary, ErrorCode.NotPrimaryNoSecondaryOk,
        ErrorCode.NotPrimaryOrSecondary, ErrorCode.NotWritablePrimary,
        ErrorCode.PrimarySteppedDown, ErrorCode.ShutdownInProgress,
    }
)  # fmt: skip
"""Codes of a member that is not a primary or is about to stop being one."""

RESUMABLE_CODES: Final[frozenset[int]] = (NOT_PRIMARY_CODES - {ErrorCode.LegacyNotPrimary}) | {
    ErrorCode.ExceededTimeLimit, ErrorCode.FailedToSatisfyReadPreference, ErrorCode.HostNotFound,
    ErrorCode.HostUnreachable, ErrorCode.NetworkTimeout,
    ErrorCode.ReadConcernMajorityNotAvailableYet, ErrorCode.RetryChangeStream,
    ErrorCode.SocketException, ErrorCode.StaleConfig, ErrorCode.StaleEpoch,
    ErrorCode.StaleShardVersion,
}  # fmt: skip
"""Codes that carry ResumableChangeStreamError (docs/protocol.md#opening)."""

NON_RESUMABLE_CODES: Final[frozenset[int]] = frozenset(
    {ErrorCode.ChangeStreamFatalError, ErrorCode.ChangeStreamHistoryLost}
)
"""Codes that carry NonResumableChangeStreamError (docs/protocol.md#opening)."""

# Servers print the parser's own codes (404xx) by number, though their source names them.
_NAMES = {int(code): code.name for code in ErrorCode if not 40000 <= code < 50000}

RESUMABLE_LABEL = "ResumableChangeStreamError"
NON_RESUMABLE_LABEL = "NonResumableChangeStreamError"

# Fields of the error itself, and fields about the member's own state that any reply can have.
_NOT_EXTRA = frozenset(
    {
        *("ok", "errmsg", "code", "codeName", "errorLabels"),
        *("operationTime", "lastCommittedOpTime", "topologyVersion", "electionId"),
    }
)

_REOPENED: Final[frozenset[int]] = RESUMABLE_CODES | NOT_PRIMARY_CODES | {
    ErrorCode.CursorKilled, ErrorCode.CursorNotFound, ErrorCode.NetworkInterfaceExceededTimeLimit,
    ErrorCode.QueryPlanKilled,
}  # fmt: skip
"""Codes after which a member's cursor can be opened again. A member that rolls back closes its
catalog, which kills its cursors with QueryPlanKilled."""
_NETWORK = frozenset({ErrorCode.HostUnreachable, ErrorCode.HostNotFound, ErrorCode.SocketException})

_FOR_DEVELOPERS = re.compile(
    r"\[Errno -?\d+\] | ?\(configured timeouts:[^)]*\)|, Timeout: .*|, full error: .*", re.DOTALL
)


def plain_text(error: object) -> str:
    """Return an error's message without what pymongo and Python append for developers.

    These are numbers of system errors, configured timeouts, and the driver's view of the topology.
    """
    return _FOR_DEVELOPERS.sub("", str(error))


class ProtocolError(Exception):
    """The peer broke the wire protocol and its connection ends (docs/protocol.md#wire-protocol)."""


class NetworkError(ConnectionError):
    """The connection failed, timed out or was closed; whether the command ran is unknown."""


class CommandError(Exception):
    """An ``ok: 0`` reply to a command, received from a server or sent by the router.

    ``code`` is MongoDB's error code, ``message`` its ``errmsg``; ``code_name`` defaults to
    MongoDB's name for the code, ``labels`` are the errorLabels, ``extra`` holds further fields of
    the reply that belong to the error.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        code_name: str | None = None,
        labels: Iterable[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message
        self.code_name = code_name or _NAMES.get(self.code, f"Location{self.code}")
        self.labels = frozenset(labels)
        self.extra = dict(extra or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.code} {self.code_name})"

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Build the error from a decoded ``ok: 0`` reply.

        Raises ProtocolError if its code, message, code name or labels have the wrong type.
        """
        code, message = reply.get("code", 8), reply.get("errmsg", "the server gave no message")
        name, labels = reply.get("codeName"), reply.get("errorLabels", [])
        if not (
            isinstance(code, int)
            and isinstance(message, str)
            and isinstance(name, str | None)
            and isinstance(labels, list)
            and all(isinstance(label, str) for label in labels)
        ):
            raise ProtocolError("an error reply is malformed")
        return cls(
            code,
            message,
            code_name=name,
            labels=labels,
            extra={
                name: value
                for name, value in reply.items()
                if name not in _NOT_EXTRA and not name.startswith("$")
            },
        )

    @classmethod
    def unexpected(cls, error: BaseException) -> Self:
        """Return the error of a stream that ``error`` has interrupted: a defect of the router.

        It is resumable: the client has got no token beyond the events that it has received, so a
        stream that it resumes from there has all others. ``error`` becomes the cause.
        """
        reason = f"The router failed to process the change stream ({type(error).__name__})"
        message = f"{reason}; its log has the details"
        interrupted = cls(ErrorCode.InternalError, message, labels=(RESUMABLE_LABEL,))
        interrupted.__cause__ = error
        return interrupted

    def to_reply(self) -> dict[str, Any]:
        """Return the reply document, with the fields in the order that servers use."""
        reply: dict[str, Any] = {
            **self.extra,
            "ok": 0.0,
            "errmsg": self.message,
            "code": self.code,
            "codeName": self.code_name,
        }
        if self.labels:
            reply["errorLabels"] = sorted(self.labels)
        return reply

    def with_labels(self, *labels: str, message: str | None = None) -> Self:
        """Return a copy of the error with further labels, and with another message if given."""
        copied = type(self).__new__(type(self))
        vars(copied).update(vars(self), labels=self.labels.union(labels))
        copied.__cause__ = self.__cause__
        copied.message = self.message if message is None else message
        return copied

    def with_change_stream_label(self) -> Self:
        """Return the error as mongos labels it on a change stream (docs/protocol.md#opening)."""
        if self.code in NON_RESUMABLE_CODES:
            return self.with_labels(NON_RESUMABLE_LABEL)
        if self.code in RESUMABLE_CODES:
            return self.with_labels(RESUMABLE_LABEL)
        return self.with_labels()


class WrongServerError(CommandError):
    """Another server answers than the one that the settings describe: waiting does not help."""


def is_resumable(error: CommandError) -> bool:
    """Return whether a cursor that failed with ``error`` can be opened again after its watermark.

    It cannot after a lost oplog position and fatal errors (docs/protocol.md#opening). mongos passes
    QueryPlanKilled on, and drivers do not resume after it; reopening the cursor loses nothing.
    """
    return error.code in _REOPENED or RESUMABLE_LABEL in error.labels


def blames_member(error: Exception) -> bool:
    """Return whether ``error`` (not primary, or unreachable) requires selecting a member again."""
    if isinstance(error, CommandError):
        return error.code in NOT_PRIMARY_CODES or error.code in _NETWORK
    return isinstance(error, NetworkError)


def from_network(error: NetworkError, address: str) -> CommandError:
    """Return the error that mongos reports to a client for an unreachable member."""
    return CommandError(
        ErrorCode.HostUnreachable, f"Error connecting to {address} :: caused by :: {error}"
    )
