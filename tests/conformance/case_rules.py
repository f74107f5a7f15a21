"""The rules that each recorded case verifies."""

from tests.conformance.report import Rule

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
_RESUMING = "3, resuming"
_START = "an empty first batch has the starting point as PBRT, also in the future"

_BY_CASE: dict[str, tuple[Rule, ...]] = {
    "getMore-unknown": (("2", "an unknown cursor: CursorNotFound 43"),),
    "killCursors-none": (("2", _KILL),),
    "aggregate-no-cursor": (("4", _CURSOR),),
    "cursor-unknown": (("4", _CURSOR),),
    "batchSize-negative": (("4", _CURSOR),),
    "not-a-document": (("4", "$changeStream not a document: 6188500"),),
    "not-first": (("4", "not first in the pipeline: 40602"),),
    "unknown-option": (("4", "unknown option: 40415"),),
    "bad-fullDocument": (("4", _ENUM),),
    "bad-before": (("4", _ENUM),),
    "bad-fullDocument-type": (("4", _TYPE),),
    "startAt-type": (("4", _TYPE),),
    "token-not-document": (("4", _TYPE),),
    "allChanges-on-db": (("4", _CLUSTER),),
    "allChanges-on-coll": (("4", _CLUSTER),),
    "admin-without-allChanges": (("4", _INTERNAL),),
    "on-config": (("4", _INTERNAL),),
    "on-config-db": (("4", _INTERNAL),),
    "on-local": (("4", "on local: 20"),),
    "on-system-coll": (("4", _SYSTEM),),
    "on-system-coll-allow": (("4", _SYSTEM),),
    "migration-events": (("4", "showMigrationEvents through mongos: 31123"),),
    "resume-and-start": (("4", "resumeAfter and startAfter: 50865"),),
    "time-and-token": (("4", "startAtOperationTime and a token: 40674"),),
    "token-empty": (("3", _DATA),),
    "token-data-int": (("3", _DATA),),
    "token-nothex": (("3", _HEX),),
    "token-odd": (("3", _HEX),),
    "token-empty-string": (("3", "40649: empty"),),
    "token-truncated": (("3", _OVERSIZED),),
    "token-version9": (("3", "50795: version"),),
    "token-typebits": (("3", "40648: _typeBits not BinData"),),
    "token-no-uuid": (("4", _UUID),),
    "resume-invalidate": (("4", _INVALIDATE),),
    "resumeAfter-invalidate": (("4", _INVALIDATE),),
    "needsMerge": (("4", _MARKED),),
    "fromMongos": (("4", _MARKED),),
    "banned-stage": (("4", _STAGES),),
    "banned-lookup": (("4", _STAGES),),
    "banned-out": (("4", _STAGES),),
    "banned-limit": (("4", _STAGES),),
    "banned-sort": (("4", _STAGES),),
    "unknown-stage": (("4", _STAGES),),
    "bad-match": (("4", _MALFORMED),),
    "bad-match-type": (("4", _MALFORMED),),
    "stage-two-fields": (("4", _MALFORMED),),
    "stage-not-doc": (("4", _MALFORMED),),
    "internal-stage": (("4", "an internal stage: 5491300"),),
    "split-not-last": (("4", _SPLIT),),
    "split-args": (("4", _SPLIT),),
    "split-twice": (("4", _SPLIT),),
    "split-without": (("4", _SPLIT),),
    "readConcern-local": (("4", _CONCERN),),
    "readConcern-snapshot": (("4", _CONCERN),),
    "readConcern-linearizable": (("4", _CONCERN),),
    "on-view": (("4", "on a view: 166"),),
    "nonexistent-coll": (("4", _ABSENT),),
    "nonexistent-db": (("4", _ABSENT),),
    "nonexistent-db-coll": (("4", _ABSENT),),
    "maxTimeMS": (("4", _TAKEN),),
    "allowDiskUse": (("4", _TAKEN),),
    "comment-let-hint": (("4", _TAKEN),),
    "passthrough": (("2", "$_passthroughToShard gives one shard's events alone"),),
    "passthrough-unknown": (("4", "an unknown shard in $_passthroughToShard: 70"),),
    "apiStrict": (("2", "the versioned API of a getMore is that of its aggregate"),),
    "apiStrict-expanded": (("4", "API version 1, strict: 323 for options that are not in it"),),
    "future": (("2", _START),),
    "in-transaction": (("4", "in a transaction: 263"),),
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
            "startAfter an invalidate: each shard skips the first invalidate that it reaches",
        ),
    ),
    "resumeAfter-drop": (
        (
            "5",
            "a merged stream ends after what is ready at or below the invalidate: "
            "empty batch, id 0",
        ),
    ),
}


def rules_of(case: str, *, conversation: bool) -> list[Rule]:
    """Return a case's own rules and, if it has getMores, those that all replies verify."""
    rules = list(_BY_CASE.get(case, ()))
    if conversation:
        rules += [("2", _FIRST), ("2", _NEXT)]
    if case.startswith("resume-") and case.rpartition("-")[2] in ("insert", "update", "delete"):
        rules.append((_RESUMING, "resuming after any event's token gives the rest of the history"))
    if case.startswith("resume-") and case.endswith("-drop"):
        rules.append((_RESUMING, "resuming after equal tokens of several shards skips them all"))
    return rules
