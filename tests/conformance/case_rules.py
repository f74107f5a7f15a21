"""The rules that each recorded case verifies."""

from tests.conformance.rules import Rule

_FIRST = "aggregate: {cursor: {firstBatch, postBatchResumeToken, id, ns}, ok, times}"
_NEXT = "getMore: {cursor: {id, ns, nextBatch, postBatchResumeToken}, ok, times}"
_STAGES = "a stage not allowed in change streams: 20; an unknown one: 40324"
_MALFORMED = "a malformed stage: 40323, 14, 15959, 2"
_SPLIT = "$changeStreamSplitLargeEvent not last, not empty, twice, alone: 7182802, 7182800, 20"
_CONCERN = "read concern other than majority: 72"
_TYPE = "an option of the wrong type: 14 TypeMismatch"
_ENUM = "bad enum value for fullDocument or fullDocumentBeforeChange: 2"
_SYSTEM = "on a system. collection: 73"
_INTERNAL = "on admin without allChangesForCluster; on config: 73"
_CLUSTER = "allChangesForCluster elsewhere than {aggregate: 1} on admin: 72"
_MARKED = "fromMongos from a client: 51089; needsMerge alone: 9"
_CURSOR = "cursor options: unknown field 40415, negative batchSize 51024, cursor missing 9"
_TAKEN = "comment, hint, allowDiskUse, maxTimeMS are accepted"
_ABSENT = "missing collections and databases can be watched, which does not create them"
_UUID = "single collection, event token without UUID: 260"
_INVALIDATE = "resumeAfter with an invalidate token: 260"
_HEX = "9 FailedToParse: not a hex string"
_DATA = "40647: _data missing or not a string"
_OVERSIZED = "40646 and Overflow 15: oversized and truncated tokens"
_KILL = "killCursors answers cursorsKilled, cursorsNotFound, cursorsAlive, cursorsUnknown"
_RESUMING = "Resuming"
_START = "an empty first batch has the starting point as PBRT, also in the future"

_BY_CASE: dict[str, tuple[Rule, ...]] = {
    "getMore-unknown": (("Cursor replies", "an unknown cursor: CursorNotFound 43"),),
    "killCursors-none": (("Cursor replies", _KILL),),
    "aggregate-no-cursor": (("Opening", _CURSOR),),
    "cursor-unknown": (("Opening", _CURSOR),),
    "batchSize-negative": (("Opening", _CURSOR),),
    "not-a-document": (("Opening", "$changeStream not a document: 6188500"),),
    "not-first": (("Opening", "not first in the pipeline: 40602"),),
    "unknown-option": (("Opening", "unknown option: 40415"),),
    "bad-fullDocument": (("Opening", _ENUM),),
    "bad-before": (("Opening", _ENUM),),
    "bad-fullDocument-type": (("Opening", _TYPE),),
    "startAt-type": (("Opening", _TYPE),),
    "token-not-document": (("Opening", _TYPE),),
    "allChanges-on-db": (("Opening", _CLUSTER),),
    "allChanges-on-coll": (("Opening", _CLUSTER),),
    "admin-without-allChanges": (("Opening", _INTERNAL),),
    "on-config": (("Opening", _INTERNAL),),
    "on-config-db": (("Opening", _INTERNAL),),
    "on-local": (("Opening", "on local: 20"),),
    "on-system-coll": (("Opening", _SYSTEM),),
    "on-system-coll-allow": (("Opening", _SYSTEM),),
    "migration-events": (("Opening", "showMigrationEvents through mongos: 31123"),),
    "resume-and-start": (("Opening", "resumeAfter and startAfter: 50865"),),
    "time-and-token": (("Opening", "startAtOperationTime and a token: 40674"),),
    "token-empty": (("Resume tokens", _DATA),),
    "token-data-int": (("Resume tokens", _DATA),),
    "token-nothex": (("Resume tokens", _HEX),),
    "token-odd": (("Resume tokens", _HEX),),
    "token-empty-string": (("Resume tokens", "40649: empty"),),
    "token-truncated": (("Resume tokens", _OVERSIZED),),
    "token-version9": (("Resume tokens", "50795: version"),),
    "token-typebits": (("Resume tokens", "40648: _typeBits not BinData"),),
    "token-no-uuid": (("Opening", _UUID),),
    "resume-invalidate": (("Opening", _INVALIDATE),),
    "resumeAfter-invalidate": (("Opening", _INVALIDATE),),
    "needsMerge": (("Opening", _MARKED),),
    "fromMongos": (("Opening", _MARKED),),
    "banned-stage": (("Opening", _STAGES),),
    "banned-lookup": (("Opening", _STAGES),),
    "banned-out": (("Opening", _STAGES),),
    "banned-limit": (("Opening", _STAGES),),
    "banned-sort": (("Opening", _STAGES),),
    "unknown-stage": (("Opening", _STAGES),),
    "bad-match": (("Opening", _MALFORMED),),
    "bad-match-type": (("Opening", _MALFORMED),),
    "stage-two-fields": (("Opening", _MALFORMED),),
    "stage-not-doc": (("Opening", _MALFORMED),),
    "internal-stage": (("Opening", "an internal stage: 5491300"),),
    "split-not-last": (("Opening", _SPLIT),),
    "split-args": (("Opening", _SPLIT),),
    "split-twice": (("Opening", _SPLIT),),
    "split-without": (("Opening", _SPLIT),),
    "readConcern-local": (("Opening", _CONCERN),),
    "readConcern-snapshot": (("Opening", _CONCERN),),
    "readConcern-linearizable": (("Opening", _CONCERN),),
    "on-view": (("Opening", "on a view: 166"),),
    "nonexistent-coll": (("Opening", _ABSENT),),
    "nonexistent-db": (("Opening", _ABSENT),),
    "nonexistent-db-coll": (("Opening", _ABSENT),),
    "maxTimeMS": (("Opening", _TAKEN),),
    "allowDiskUse": (("Opening", _TAKEN),),
    "comment-let-hint": (("Opening", _TAKEN),),
    "passthrough": (("Cursor replies", "$_passthroughToShard gives one shard's events alone"),),
    "passthrough-unknown": (("Opening", "an unknown shard in $_passthroughToShard: 70"),),
    "apiStrict": (("Cursor replies", "the versioned API of a getMore is that of its aggregate"),),
    "apiStrict-expanded": (
        ("Opening", "API version 1, strict: 323 for options that are not in it"),
    ),
    "future": (("Cursor replies", _START),),
    "in-transaction": (("Opening", "in a transaction: 263"),),
    "resume-hwm": ((_RESUMING, "resuming after any PBRT gives the rest of the history"),),
    "resume-changed-pipeline-2": (
        (
            _RESUMING,
            "a changed pipeline that drops the token's event: 280 once the stream surpasses it",
        ),
    ),
    "no-resume-other-collection": ((_RESUMING, "a token of another collection: 280"),),
    "startAfter-invalidate": (
        (
            _RESUMING,
            "startAfter an invalidate: each shard skips one whose cause is its first event",
        ),
    ),
    "resumeAfter-drop": (
        (
            "Events",
            "a merged stream ends after what is ready at or below the invalidate: "
            "empty batch, id 0",
        ),
    ),
}


def rules_of(case: str, *, conversation: bool) -> list[Rule]:
    """Return a case's own rules and, if it has getMores, those that all replies verify."""
    rules = list(_BY_CASE.get(case, ()))
    if conversation:
        rules += [("Cursor replies", _FIRST), ("Cursor replies", _NEXT)]
    if case.startswith("resume-") and case.rpartition("-")[2] in ("insert", "update", "delete"):
        rules.append((_RESUMING, "resuming after any event's token gives the rest of the history"))
    if case.startswith("resume-") and case.endswith("-drop"):
        rules.append((_RESUMING, "resuming after equal tokens of several shards skips them all"))
    return rules
