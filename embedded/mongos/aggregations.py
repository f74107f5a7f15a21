"""aggregate: a pipeline over documents that are gathered from the shards."""

from collections.abc import Mapping, Sequence
from typing import Any

from embedded.change_streams import UserStages
from embedded.errors import CommandError, ErrorCode
from embedded.mongos.reads import all_documents, open_cursor, shards_for
from embedded.mongos.request import RoutedRequest
from embedded.storage.aggregation import aggregate as run_pipeline
from embedded.storage.bson_values import Document

Pipeline = Sequence[Mapping[str, Any]]

_CHANGE_STREAM_STAGES = ("$changeStream", "$_internalChangeStream")


def refuse_change_stream(command: Document) -> None:
    """Refuse an ``aggregate``, or its ``explain``, with a change stream stage, valid or not.

    Only the router opens change streams. A real mongos never answers an aggregate with this code,
    so the router recognizes that it must itself report the errors of a malformed request.

    Raises:
        CommandError: 59.
    """
    inner = command.get("explain", command)
    pipeline = inner.get("pipeline") if isinstance(inner, Mapping) else None
    stages = pipeline if isinstance(pipeline, list) else []
    names = [name for stage in stages if isinstance(stage, Mapping) for name in stage]
    if any(name.startswith(_CHANGE_STREAM_STAGES) for name in names):
        raise CommandError(
            ErrorCode.CommandNotFound,
            "this endpoint does not serve change streams; open them through "
            "mergerouter, or on a shard"
        )  # fmt: skip


async def aggregate(request: RoutedRequest) -> Document:
    """Run a pipeline over a collection, or over given documents.

    Raises:
        CommandError: the errors of pipelines and shards.
    """
    pipeline = request.field("pipeline", list)
    cursor = request.command.get("cursor", {})
    size = cursor.get("batchSize") if isinstance(cursor, Mapping) else None
    if not isinstance(request.command["aggregate"], str):
        documents = _from_given(request, pipeline)
        return await open_cursor(request, f"{request.database}.$cmd.aggregate", documents, size)
    documents = await _over_collection(request, pipeline)
    return await open_cursor(request, request.namespace, documents, size)


def _from_given(request: RoutedRequest, pipeline: Pipeline) -> list[Document]:
    """Run a pipeline over the documents in its ``$documents`` stage."""
    if not pipeline or "$documents" not in pipeline[0]:
        return []
    given, rest = pipeline[0]["$documents"], pipeline[1:]
    if isinstance(given, Mapping) and given.keys() == {"$literal"}:
        given = given["$literal"]
    if not isinstance(given, list) or not all(isinstance(stage, dict) for stage in given):
        raise CommandError(5858203, "$documents must be an array of objects")
    stages = UserStages.of(rest, request.command)
    results = (stages.apply(document) for document in given if stages.wants(document))
    return [result for result in results if result is not None]


async def _over_collection(request: RoutedRequest, pipeline: Pipeline) -> list[Document]:
    filter_: Mapping[str, Any] = {}
    if pipeline and "$match" in pipeline[0]:
        filter_, pipeline = pipeline[0]["$match"], pipeline[1:]
    async with request.placement() as placement:
        if placement is None:
            return []
        shards = shards_for(request, placement, filter_)
        inner: Document = {"find": request.collection, "filter": filter_}
        documents = all_documents(await request.send_all(dict.fromkeys(shards, inner)))
    return run_pipeline(documents, pipeline)
