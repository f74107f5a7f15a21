"""The MongoDB error codes that the router distinguishes, by their official names."""

from enum import IntEnum


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


NOT_PRIMARY_CODES = frozenset({189, 10058, 10107, 11600, 11602, 13435, 13436, 91})
"""Codes of a member that is not a primary or is about to stop being one."""

RESUMABLE_CODES = frozenset(
    {6, 7, 63, 89, 91, 133, 134, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436}
)
"""Codes that carry ResumableChangeStreamError (docs/protocol.md#opening)."""

NON_RESUMABLE_CODES = frozenset({280, 286})
"""Codes that carry NonResumableChangeStreamError (docs/protocol.md#opening)."""

# Servers print the parser's own codes (404xx) by number, though their source names them.
_NAMES = {int(code): code.name for code in ErrorCode if not 40000 <= code < 50000}


def code_name(code: int) -> str:
    """Return MongoDB's name for ``code``, or ``Location<code>`` if it has none, as servers do."""
    return _NAMES.get(code, f"Location{code}")
