"""Change stream requests with the stages, options and fields that the router reads, and others.

The options of ``$changeStream`` and the fields of ``aggregate`` are those of MongoDB 6.0, 7.0 and
8.0, and some that do not exist. The router passes to mongos what it does not accept.
"""

import uuid
from datetime import UTC, datetime
from typing import Any

from bson import Binary, Decimal128, Int64, Timestamp

_UUID = Binary(uuid.UUID(int=5).bytes, 4)

ACCEPTED: dict[str, Any] = {
    "$addFields": {"a": 1},
    "$changeStreamSplitLargeEvent": {},
    "$match": {},
    "$project": {"a": 0},
    "$redact": "$$KEEP",
    "$replaceRoot": {"newRoot": "$$ROOT"},
    "$replaceWith": "$$ROOT",
    "$set": {"a": 1},
    "$unset": "a",
}
STAGES: list[dict[str, Any]] = [
    *({name: argument} for name, argument in ACCEPTED.items()),
    *(
        {name: argument}
        for name in ("$_internalInhibitOptimization", "$_internalShredDocuments")
        for argument in ({}, 5, "x", [], {"a": 1})
    ),
    {"$group": {"_id": 1}},
    {"$lookup": {"from": "d", "localField": "a", "foreignField": "a", "as": "x"}},
    {"$out": "x"},
    {"$documents": [{"a": 1}]},
    {"$facet": {"a": []}},
    *(
        {name: {}}
        for name in (
            "$changeStream", "$collStats", "$currentOp", "$search", "$vectorSearch", "$listCatalog",
            "$_internalChangeStreamTransform", "$_internalNonsense", "$nonsense",
        )
    ),
]  # fmt: skip
"""Stages to append to ``$changeStream``: all that the router accepts, and some others."""

OPTIONS: list[dict[str, Any]] = [
    {"resumeAfter": 5},
    {"startAfter": 5},
    {"startAtOperationTime": 5},
    *({"fullDocument": value} for value in ("x", None, 5, "required", "whenAvailable")),
    *({"fullDocumentBeforeChange": value} for value in ("x", None, 5, "required", "off")),
    *({"allChangesForCluster": value} for value in (5, None, False, True)),
    *({"showMigrationEvents": value} for value in (True, False)),
    *({"showSystemEvents": value} for value in (True, None)),
    *({"showExpandedEvents": value} for value in (True, 5)),
    {"showRawUpdateDescription": True},
    {"allowToRunOnSystemNS": True},
    {"matchCollectionUUIDForUpdateLookup": True},
    {"ignoreRemovedShards": True},
    {"version": "v1"},
    *({"supportedEvents": value} for value in ([], ["a"])),
    {"nonsense": 1},
    {"batchSize": 1},
]
"""Options of ``$changeStream``."""

SESSION: dict[str, Any] = {"id": _UUID}
FIELDS: list[dict[str, Any]] = [
    *({"lsid": value} for value in (5, {}, SESSION)),
    *({"lsid": {"id": value}} for value in (5, None, b"1" * 16, Binary(b"1" * 15, 4))),
    {"lsid": {**SESSION, "uid": 5}},
    *({"lsid": {**SESSION, name: 5}} for name in ("x", "txnNumber", "txnUUID")),
    {"lsid": SESSION, "autocommit": False},
    *({"lsid": SESSION, "txnNumber": value} for value in (5, Int64(-1), Int64(1))),
    {"lsid": SESSION, "txnNumber": Int64(1), "autocommit": False, "startTransaction": False},
    *({"lsid": SESSION, name: True} for name in ("autocommit", "startTransaction")),
    *({"maxTimeMS": value} for value in (60_000, 0, -1, "x", 2**31, 1.5, 1e300, float("nan"))),
    *({"collectionUUID": value} for value in (_UUID, 5, Binary(b"1" * 16, 0))),
    *({"$_generateV2ResumeTokens": value} for value in (False, 5, "x")),
    *({"$_requestReshardingResumeToken": value} for value in (True, 5)),
    *({name: True} for name in ("$_requestResumeToken", "$_isClusterQueryWithoutShardKeyCmd")),
    {"$_resumeAfter": {}},
    {"$_externalDataSources": []},
    *({"$queryOptions": value} for value in ({}, 5)),
    {"sampleId": _UUID},
    {"stmtId": 5},
    *({"isMapReduceCommand": value} for value in (True, 5)),
    {"runtimeConstants": {}},
    {
        "runtimeConstants": {
            "localNow": datetime(2026, 1, 1, tzinfo=UTC),
            "clusterTime": Timestamp(1, 1),
        }
    },
    *({"exchange": value} for value in ({}, 5)),
    *({"encryptionInformation": value} for value in ({}, 5)),
    *({name: {}} for name in ("querySettings", "serialization_context", "databaseVersion")),
    *({name: True} for name in ("includeQueryStatsMetrics", "rawData", "expectPrefix", "help")),
    {"maxTimeMSOpOnly": 5},
    *({"bypassDocumentValidation": value} for value in (True, "x", None, 1, Decimal128("1"))),
    *({"allowDiskUse": value} for value in (True, 5, "x")),
    *({"hint": value} for value in ("x", {"a": 1}, 5)),
    *({"let": value} for value in ({"a": 1}, 5)),
    *({"collation": value} for value in ({"locale": "en"}, {}, 5)),
    *({"$readPreference": value} for value in ("nearest", {}, {"mode": "all"})),
    {"$readPreference": {"mode": "primary", "tags": [{"dc": "a"}]}},
    {"$readPreference": {"mode": "nearest", "maxStalenessSeconds": 1}},
    {"comment": 5},
    *({"writeConcern": value} for value in ({"w": 1}, {})),
    *({"readConcern": {"level": value}} for value in ("majority", "local", "snapshot", 5)),
    *({"readConcern": value} for value in ({}, {"x": 1}, {"afterClusterTime": Timestamp(5, 1)})),
    {"nonsense": 1},
    {"$nonsense": 1},
    {"coordinator": True},
    {"shardVersion": []},
    {"allowImplicitCollectionCreation": False},
    {"clientOperationKey": _UUID},
    {"mayBypassWriteBlocking": True},
    *({"$_passthroughToShard": value} for value in ({}, {"shard": 5}, {"shard": "s", "x": 1})),
    *({name: 1} for name in ("tracking_info", "$tenant", "$audit", "$oplogQueryData", "$replData")),
    *({name: Timestamp(1, 1)} for name in ("$configTime", "$topologyTime")),
    *({name: 5} for name in ("$client", "$configServerState", "explain")),
    *({name: True} for name in ("needsMerge", "fromMongos", "fromRouter")),
    {"fromMongos": False},
    *({"cursor": value} for value in (5, {"x": 1})),
    *({"cursor": {"batchSize": value}} for value in (-1, "x", None, Int64(2**40))),
    {"apiVersion": "2"},
    {"apiVersion": 1},
    {"apiStrict": True},
    {"apiDeprecationErrors": 5},
]
"""Fields of the ``aggregate``."""
