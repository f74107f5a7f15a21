"""The rules of docs/protocol.md that recorded cases verify, in the page's order.

``@pytest.mark.rule(section, rule)`` names a rule that a test verifies. Events that the router
passes on as they are, and requests that only a server judges, are compared with mongos in
tests/differential. `make conformance` writes build/conformance.md from the marks and the outcomes.
"""

Rule = tuple[str, str]
"""The section and the rule's text."""

RULES: dict[str, dict[str, str]] = {
    "Cursor replies": {
        "an empty first batch has the starting point as PBRT, also in the future": "future",
        "an unknown cursor: CursorNotFound 43": "getMore-unknown",
        "killCursors answers cursorsKilled, cursorsNotFound, cursorsAlive, cursorsUnknown": (
            "killCursors-none"
        ),
        "the versioned API of a getMore is that of its aggregate": "apiStrict",
        "$_passthroughToShard gives one shard's events alone": "passthrough",
    },
    "Resume tokens": {
        "the high water mark's token names the time alone": "future",
        "40647: _data missing or not a string": "token-empty token-data-int",
        "40648: _typeBits not BinData": "token-typebits",
        "9 FailedToParse: not a hex string": "token-nothex token-odd",
        "40649: empty": "token-empty-string",
        "50795: version": "token-version9",
        "40646 and Overflow 15: oversized and truncated tokens": "token-truncated",
    },
    "Resuming": {
        "resuming after any PBRT gives the rest of the history": "resume-hwm",
        "startAfter an invalidate: each shard skips one whose cause is its first event": (
            "startAfter-invalidate"
        ),
        "startAtOperationTime in the past gives all events from then on, that time included": (
            "cluster db"
        ),
        "a changed pipeline that drops the token's event: 280 once the stream surpasses it": (
            "resume-changed-pipeline-2"
        ),
        "a token of another collection: 280": "no-resume-other-collection",
    },
    "Opening": {
        "$changeStream not a document: 6188500": "not-a-document",
        "not first in the pipeline: 40602": "not-first",
        "unknown option: 40415": "unknown-option",
        "an option of the wrong type: 14 TypeMismatch": (
            "bad-fullDocument-type startAt-type token-not-document"
        ),
        "bad enum value for fullDocument or fullDocumentBeforeChange: 2": (
            "bad-fullDocument bad-before"
        ),
        "allChangesForCluster elsewhere than {aggregate: 1} on admin: 72": (
            "allChanges-on-db allChanges-on-coll"
        ),
        "on admin without allChangesForCluster; on config: 73": (
            "admin-without-allChanges on-config on-config-db"
        ),
        "on local: 20": "on-local",
        "on a system. collection: 73": "on-system-coll on-system-coll-allow",
        "showMigrationEvents through mongos: 31123": "migration-events",
        "resumeAfter and startAfter: 50865": "resume-and-start",
        "startAtOperationTime and a token: 40674": "time-and-token",
        "resumeAfter with an invalidate token: 260": "resume-invalidate resumeAfter-invalidate",
        "single collection, event token without UUID: 260": "token-no-uuid",
        "fromMongos from a client: 51089; needsMerge alone: 9": "needsMerge fromMongos",
        "an internal stage: 5491300": "internal-stage",
        "a stage not allowed in change streams: 20; an unknown one: 40324": (
            "banned-stage banned-lookup banned-out banned-limit banned-sort unknown-stage"
        ),
        "a malformed stage: 40323, 14, 15959, 2": (
            "bad-match bad-match-type stage-two-fields stage-not-doc"
        ),
        "read concern other than majority: 72": (
            "readConcern-local readConcern-snapshot readConcern-linearizable"
        ),
        "in a transaction: 263": "in-transaction",
        "$changeStreamSplitLargeEvent not last, not empty, twice, alone: 7182802, 7182800, 20": (
            "split-not-last split-args split-twice split-without"
        ),
        "on a view: 166": "on-view",
        "token not found on resuming: 280": "resume-changed-pipeline-2",
        "an event of more than 16 MiB without splitting: 10334": "coll-big",
        "cursor options: unknown field 40415, negative batchSize 51024, cursor missing 9": (
            "aggregate-no-cursor cursor-unknown batchSize-negative"
        ),
        "an unknown shard in $_passthroughToShard: 70": "passthrough-unknown",
        "API version 1, strict: 323 for options that are not in it": "apiStrict-expanded",
        "comment, hint, allowDiskUse, maxTimeMS are accepted": (
            "maxTimeMS allowDiskUse comment-let-hint"
        ),
        "missing collections and databases can be watched, which does not create them": (
            "nonexistent-coll nonexistent-db nonexistent-db-coll"
        ),
    },
    "Events": {
        "insert": "cluster-expanded",
        "update: updatedFields, removedFields, truncatedArrays": "cluster-expanded",
        "replace": "cluster-expanded",
        "delete": "cluster-expanded",
        "drop": "cluster-expanded",
        "rename": "cluster-expanded",
        "dropDatabase": "cluster-expanded",
        "invalidate": "db-other",
        "create (showExpandedEvents)": "cluster-expanded",
        "createIndexes (showExpandedEvents)": "cluster-expanded",
        "dropIndexes (showExpandedEvents)": "cluster-expanded",
        "modify (showExpandedEvents)": "cluster-expanded",
        "expanded events and their fields are shown only on request": "cluster-expanded",
        "documentKey has the shard key first": "cluster-expanded",
        "a shard key change is a delete and an insert": "cluster-expanded",
        "truncatedArrays [{field, newSize}]": "cluster-expanded",
        "collectionUUID and operationDescription (expanded)": "cluster-expanded",
        "wallTime and clusterTime": "cluster-expanded",
        "lsid and txnNumber of a transaction, ordered by txnOpIndex": "cluster-expanded",
        "a transaction's events on several shards interleave by token": "cluster-expanded",
        "an aborted transaction has no events": "cluster-expanded",
        "a sharded collection's DDL comes once per shard that has it": "cluster-expanded",
        "chunk migration writes are not events": "cluster-expanded",
        "invalidate: its cause's token, with fromInvalidate": "db-other",
        "a merged stream ends after what is ready at or below the invalidate: empty batch, id 0": (
            "resumeAfter-drop"
        ),
        "database streams end with dropDatabase, not with a collection's drop or rename": (
            "db db-other"
        ),
        "cluster streams never end": "cluster",
        "fullDocument: default": "cluster-expanded",
        "fullDocument: updateLookup": "coll-orders-lookup",
        "fullDocument: whenAvailable": "coll-img",
        "fullDocument: required": "coll-img-required",
        "fullDocumentBeforeChange: off, whenAvailable, required": "coll-img coll-img-required",
        "$changeStreamSplitLargeEvent: fragments with splitEvent {fragment, of}, across replies": (
            "coll-big-split"
        ),
        "modify has the previous options (stateBeforeChange)": "cluster-expanded",
    },
    "Sharded cluster": {"a client cannot open a stream on config.shards": "on-config"},
}
"""The names of the recorded cases and streams of a rule, by section."""


OF_ALL_REPLIES = (
    "aggregate: {cursor: {firstBatch, postBatchResumeToken, id, ns}, ok, times}",
    "getMore: {cursor: {id, ns, nextBatch, postBatchResumeToken}, ok, times}",
    "ns is db.coll, db.$cmd.aggregate or admin.$cmd.aggregate",
)
"""Rules of the section "Cursor replies"."""


def rules_of(case: str, *, conversation: bool = False) -> list[Rule]:
    """Return the rules of a case or stream and, if a case has getMores, those of all replies."""
    resuming = "Resuming"
    rules = [
        (section, rule)
        for section, listed in RULES.items()
        for rule, cases in listed.items()
        if case in cases.split()
    ]
    if conversation:
        rules += [("Cursor replies", each) for each in OF_ALL_REPLIES]
    if case.startswith("resume-") and case.rpartition("-")[2] in ("insert", "update", "delete"):
        rules.append((resuming, "resuming after any event's token gives the rest of the history"))
    if case.startswith("resume-") and case.endswith("-drop"):
        rules.append((resuming, "resuming after equal tokens of several shards skips them all"))
    return rules
