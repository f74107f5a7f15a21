"""The explain reply of a change stream."""

from collections.abc import Mapping
from typing import Any, Final

from embedded.change_streams.cursor import open_change_stream
from embedded.change_streams.host import StreamHost

_QUERY_LIMITS: Final = {
    "internalQueryFacetBufferSizeBytes": 104857600,
    "internalQueryFacetMaxOutputDocSizeBytes": 104857600,
    "internalLookupStageIntermediateDocumentMaxSizeBytes": 104857600,
    "internalDocumentSourceGroupMaxMemoryBytes": 104857600,
    "internalQueryMaxBlockingSortMemoryUsageBytes": 104857600,
    "internalQueryProhibitBlockingMergeOnMongoS": 0,
    "internalQueryMaxAddToSetBytes": 104857600,
    "internalDocumentSourceSetWindowFieldsMaxMemoryBytes": 104857600,
}


def explain_change_stream(
    host: StreamHost, database: str, command: Mapping[str, Any]
) -> dict[str, Any]:
    """Return explain's reply for an aggregate with ``$changeStream``.

    The reply lists the stages but not the details of the oplog scan.

    Raises:
        CommandError: the command itself is invalid.
    """
    cursor = open_change_stream(host, database, {"cursor": {}, **command})
    cursor.close()
    planner = {
        "namespace": "local.oplog.rs",
        "indexFilterSet": False,
        "parsedQuery": {},
        "winningPlan": {"stage": "COLLSCAN", "direction": "forward"},
        "rejectedPlans": [],
    }
    options: Mapping[str, Any] = command["pipeline"][0]["$changeStream"]
    transform = {"fullDocument": "default", "fullDocumentBeforeChange": "off", **options}
    stages: list[Mapping[str, Any]] = [
        {"stage": "internalUnwindTransaction"},
        {"stage": "internalTransform", "options": transform},
        {"stage": "internalCheckInvalidate"},
        {"stage": "internalCheckResumability"},
    ]
    if transform["fullDocumentBeforeChange"] != "off":
        stages.append({"stage": "internalAddPreImage"})
    if transform["fullDocument"] != "default":
        stages.append({"stage": "internalAddPostImage"})
    return {
        "explainVersion": "1",
        "stages": [
            {"$cursor": {"queryPlanner": planner}},
            *({"$changeStream": stage} for stage in stages),
            *command["pipeline"][1:],
        ],
        "serverParameters": dict(_QUERY_LIMITS),
        "command": dict(command),
    }
