"""The rules of docs/protocol.md#cursor-replies to docs/protocol.md#sharded-cluster, one line each,
in the page's order, with the recorded cases and streams that verify them.

``@pytest.mark.rule(section, rule)`` names a rule that a test verifies. A rule without a test
fails the run. Events that the router passes on as they are, and requests that only a server judges,
are compared with mongos in tests/differential. `make conformance` writes build/conformance.md from
this table and the outcomes.
"""

Rule = tuple[str, str]
"""The section and the rule's text."""

RULES: dict[str, dict[str, str]] = {
    "Cursor replies": {
        "aggregate: {cursor: {firstBatch, postBatchResumeToken, id, ns}, ok, times}": "",
        "getMore: {cursor: {id, ns, nextBatch, postBatchResumeToken}, ok, times}": "",
        "ns is db.coll, db.$cmd.aggregate or admin.$cmd.aggregate": "",
        "the first reply does not wait and holds no events": "",
        "an empty first batch has the starting point as PBRT, also in the future": "future",
        "getMore returns at most batchSize events; absent or 0: as many as fit": "",
        "getMore ends a batch before it exceeds 16 MiB": "",
        "getMore returns at once if it has an event and nothing more is ready": "",
        "getMore without events waits up to maxTimeMS, then gives an empty batch with a PBRT": "",
        "maxTimeMS absent: 1000 ms; 0: no wait": "",
        "PBRT: the last event's token while more is ready, else the high water mark": "",
        "tokens never go backwards over a cursor's life": "",
        "a wrong collection on getMore is accepted": "",
        "another session's cursor is an error": "",
        "an unknown cursor: CursorNotFound 43": "getMore-unknown",
        "a cursor in use: CursorInUse 143": "",
        "a getMore in flight ends with 237 when its cursor is killed": "",
        "idle cursors are closed after cursorTimeoutMillis": "",
        "a session's cursors end with the session": "",
        "killCursors answers cursorsKilled, cursorsNotFound, cursorsAlive, cursorsUnknown": (
            "killCursors-none"
        ),
        "a closed stream leaves no cursor open on the shards": "",
        "the versioned API of a getMore is that of its aggregate": "apiStrict",
        "explain shows shardsPart, mergerPart and each shard's stages": "",
        "$_passthroughToShard gives one shard's events alone": "passthrough",
    },
    "Resume tokens": {
        "tokens are {_data: hex KeyString} of version 1, as 6.0 makes them": "",
        "tokens of version 2, as 7.0 makes them": "",
        "the high water mark's token names the time alone": "",
        "hex strings compare as plain strings in stream order": "",
        "tokens are answered in the version that the shards use": "",
        "a version 1 token resumes on shards that make version 2": "",
        "a token resumes on any router or mongos": "",
        "40647: _data missing or not a string": "token-empty token-data-int",
        "40648: _typeBits not BinData": "token-typebits",
        "9 FailedToParse: not a hex string": "token-nothex token-odd",
        "40649: empty": "token-empty-string",
        "50795: version": "token-version9",
        "50796, 50854, 51055-51057, 50793-50794, 50855, 50870, 50872, 6189500-6189505: a field "
        "of the wrong type or out of range": "",
        "40646 and Overflow 15: oversized and truncated tokens": "token-truncated",
    },
    "Resuming": {
        "resuming after any event's token gives the rest of the history": "",
        "resuming after any PBRT gives the rest of the history": "resume-hwm",
        "resuming inside a transaction gives its remaining events": "",
        "resuming after one of several events at one cluster time on different shards": "",
        "resuming after one of several documents that 8.0 inserts at one cluster time": "",
        "resuming after a fragment's token: the rest, or 280 if its event is split differently": "",
        "resuming after equal tokens of several shards skips them all": "",
        "startAfter an invalidate: each shard skips one whose cause is its first event": (
            "startAfter-invalidate"
        ),
        "startAfter accepts any token that resumeAfter accepts": "",
        "startAtOperationTime in the past gives all events from then on, that time included": (
            "cluster db"
        ),
        "startAtOperationTime in the future gives no event before it": "",
        "a changed pipeline that drops the token's event: 280 once the stream surpasses it": (
            "resume-changed-pipeline-2"
        ),
        "a token of another collection: 280": "no-resume-other-collection",
        "an oplog that has rolled over: 286": "",
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
        "pipeline changed an event's _id: 280": "",
        "an invalid stage fails the opening; an error on an event fails the getMore": "",
        "a failed cursor is closed": "",
        "resume point no longer in an oplog: 286": "",
        "token not found on resuming: 280": "resume-changed-pipeline-2",
        "required image missing: 47": "",
        "an event of more than 16 MiB without splitting: 10334": "coll-big",
        "cursor options: unknown field 40415, negative batchSize 51024, cursor missing 9": (
            "aggregate-no-cursor cursor-unknown batchSize-negative"
        ),
        "an unknown shard in $_passthroughToShard: 70": "passthrough-unknown",
        "API version 1, strict: 323 for options that are not in it": "apiStrict-expanded",
        "stages allowed: $match, $project, $addFields, $set, $unset, $replaceRoot, "
        "$replaceWith, $redact, $changeStreamSplitLargeEvent": "",
        "a $match that filters nearly everything still advances the PBRT": "",
        "collation applies to the user's stages": "",
        "let's variables work in the user's stages": "",
        "comment, hint, allowDiskUse, maxTimeMS are accepted": (
            "maxTimeMS allowDiskUse comment-let-hint"
        ),
        "readPreference chooses the members that shards are read from": "",
        "an invalid read preference: 2, 4, 14, 160": "",
        "missing collections and databases can be watched, which does not create them": (
            "nonexistent-coll nonexistent-db nonexistent-db-coll"
        ),
        "a cluster without shards: an empty batch and cursor id 0": "",
        "ResumableChangeStreamError on codes that clients may resume after": "",
        "NonResumableChangeStreamError on 280 and 286": "",
        "a shard's change of state is reported as 6 HostUnreachable": "",
    },
    "Events": {
        "insert": "cluster-expanded",
        "names match exactly: no patterns, no parts, the same case": "",
        "cluster streams omit admin, config and local; all streams omit system. collections": "",
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
        "reshardCollection (showExpandedEvents)": "",
        "expanded events and their fields are shown only on request": "cluster-expanded",
        "documentKey has the shard key first": "cluster-expanded",
        "a shard key change is a delete and an insert": "cluster-expanded",
        "truncatedArrays [{field, newSize}]": "cluster-expanded",
        "collectionUUID and operationDescription (expanded)": "cluster-expanded",
        "wallTime and clusterTime": "cluster-expanded",
        "lsid and txnNumber of a transaction, ordered by txnOpIndex": "cluster-expanded",
        "a transaction's events on several shards interleave by token": "cluster-expanded",
        "an aborted transaction has no events": "cluster-expanded",
        "a transaction of more than 16 MiB is one transaction": "",
        "a sharded collection's DDL comes once per shard that has it": "cluster-expanded",
        "chunk migration writes are not events": "cluster-expanded",
        "invalidate: its cause's token, with fromInvalidate": "db-other",
        "a merged stream ends after what is ready at or below the invalidate: empty batch, id 0": (
            "resumeAfter-drop"
        ),
        "single-collection streams end with drop, rename of either side, dropDatabase": "",
        "database streams end with dropDatabase, not with a collection's drop or rename": (
            "db db-other"
        ),
        "cluster streams never end": "cluster",
        "fullDocument: default": "cluster-expanded",
        "fullDocument: updateLookup": "coll-orders-lookup",
        "fullDocument: whenAvailable": "coll-img",
        "fullDocument: required": "coll-img-required",
        "fullDocumentBeforeChange: off, whenAvailable, required": "coll-img coll-img-required",
        "matchCollectionUUIDForUpdateLookup": "",
        "$changeStreamSplitLargeEvent: fragments with splitEvent {fragment, of}, across replies": (
            "coll-big-split"
        ),
        "modify has the previous options (stateBeforeChange)": "cluster-expanded",
        "a lookup finds the document by its whole key on any shard": "",
    },
    "Sharded cluster": {
        "the config server can be a shard, with the id config (8.0)": "",
        "a shard added at time t is part of the stream from t plus one tick": "",
        "a removed shard's events are all delivered and the stream continues": "",
        "events that look like those of config.shards are harmless": "",
        "a client cannot open a stream on config.shards": "on-config",
        "the PBRT advances without events, idle shards and config server included": "",
        "idle members do not delay events": "",
        "sorted by token, the shards' events are byte for byte the merged stream": "",
        "the recorded workload gives the recorded events": "",
        "a stream continues while its collection is sharded, split and moved": "",
    },
}
"""The rules by section, each with the names of its recorded cases and streams."""


def rules_of(case: str, *, conversation: bool = False) -> list[Rule]:
    """Return the rules of a case or stream and, if a case has getMores, those of all replies."""
    replies, resuming = list(RULES["Cursor replies"]), "Resuming"
    rules = [
        (section, rule)
        for section, listed in RULES.items()
        for rule, cases in listed.items()
        if case in cases.split()
    ]
    if conversation:
        rules += [("Cursor replies", each) for each in replies[:3]]
    if case.startswith("resume-") and case.rpartition("-")[2] in ("insert", "update", "delete"):
        rules.append((resuming, "resuming after any event's token gives the rest of the history"))
    if case.startswith("resume-") and case.endswith("-drop"):
        rules.append((resuming, "resuming after equal tokens of several shards skips them all"))
    return rules
