"""Change stream requests with every stage, option and field that a server's parser may know.

The names are the stages, the options of ``$changeStream`` and the fields of ``aggregate`` in
MongoDB 6.0, 7.0 and 8.0, and some that do not exist.
"""

import uuid
from datetime import UTC, datetime
from typing import Any

from bson import Binary, Decimal128, Int64, Timestamp

_UUID = Binary(uuid.UUID(int=5).bytes, 4)

_ARGUMENTS: dict[str, Any] = {
    "$addFields": {"a": 1},
    "$bucket": {"groupBy": "$a", "boundaries": [1, 2]},
    "$bucketAuto": {"groupBy": "$a", "buckets": 2},
    "$count": "n",
    "$densify": {"field": "a", "range": {"step": 1, "bounds": "full"}},
    "$documents": [{"a": 1}],
    "$facet": {"a": []},
    "$fill": {"sortBy": {"a": 1}, "output": {"a": {"method": "linear"}}},
    "$geoNear": {"near": [0, 0], "distanceField": "x"},
    "$graphLookup": {
        "from": "d", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x",
    },
    "$group": {"_id": 1},
    "$limit": 1,
    "$lookup": {"from": "d", "localField": "a", "foreignField": "a", "as": "x"},
    "$merge": "x",
    "$out": "x",
    "$project": {"a": 0},
    "$redact": "$$KEEP",
    "$replaceRoot": {"newRoot": "$$ROOT"},
    "$replaceWith": "$$ROOT",
    "$sample": {"size": 1},
    "$set": {"a": 1},
    "$setWindowFields": {"sortBy": {"a": 1}, "output": {}},
    "$skip": 1,
    "$sort": {"a": 1},
    "$sortByCount": "$a",
    "$unionWith": "d",
    "$unset": "a",
    "$unwind": "$a",
}  # fmt: skip

_OTHER_STAGES = (
    "$_addReshardingResumeId", "$_analyzeShardKeyReadWriteDistribution",
    "$_internalAllCollectionStats", "$_internalApplyOplogUpdate", "$_internalBoundedSort",
    "$_internalChangeStreamAddPostImage", "$_internalChangeStreamAddPreImage",
    "$_internalChangeStreamCheckInvalidate", "$_internalChangeStreamCheckResumability",
    "$_internalChangeStreamCheckTopologyChange", "$_internalChangeStreamEnsureResumeTokenPresent",
    "$_internalChangeStreamHandleTopologyChange", "$_internalChangeStreamInjectControlEvents",
    "$_internalChangeStreamOplogMatch", "$_internalChangeStreamTransform",
    "$_internalChangeStreamUnwindTransaction", "$_internalComputeGeoNearDistance",
    "$_internalConvertBucketIndexStats", "$_internalDensify",
    "$_internalFindAndModifyImageLookup", "$_internalInhibitOptimization",
    "$_internalListCollections", "$_internalNonsense", "$_internalProjection",
    "$_internalReshardingIterateTransaction", "$_internalReshardingOwnershipMatch",
    "$_internalSearchIdLookup", "$_internalSearchMongotRemote", "$_internalSetWindowFields",
    "$_internalShardServerInfo", "$_internalShredDocuments", "$_internalSplitPipeline",
    "$_internalStreamingGroup", "$_internalUnpackBucket", "$_unpackBucket", "$backupCursor",
    "$backupCursorExtend", "$changeStream", "$changeStreamSplitLargeEvent", "$collStats",
    "$currentOp", "$indexStats", "$listCachedAndActiveUsers", "$listCatalog",
    "$listClusterCatalog", "$listLocalSessions", "$listMqlEntities", "$listSampledQueries",
    "$listSearchIndexes", "$listSessions", "$match", "$mergeCursors", "$operationMetrics",
    "$planCacheStats", "$querySettings", "$queryStats", "$queue", "$rankFusion",
    "$sampleFromRandomCursor", "$score", "$scoreFusion", "$search", "$searchMeta",
    "$setVariableFromSubPipeline", "$shardedDataDistribution", "$vectorSearch",
)  # fmt: skip

STAGES: list[dict[str, Any]] = [
    *({name: argument} for name, argument in _ARGUMENTS.items()),
    *({name: {}} for name in _OTHER_STAGES),
    *(
        {name: argument}
        for name in ("$_internalInhibitOptimization", "$_internalShredDocuments")
        for argument in (5, "x", [], {"a": 1})
    ),
]
"""Stages to append to ``$changeStream``."""

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

FIELDS: list[dict[str, Any]] = [
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
