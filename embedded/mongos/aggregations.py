"""aggregate: run whole on one shard, or on documents gathered from the shards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from embedded.change_streams import UserStages, is_single_document
from embedded.errors import bad_value, failed_to_parse
from embedded.mongos.reads import all_documents, members_for, open_cursor
from embedded.mongos.request import Placement, Request
from embedded.storage.aggregation import aggregate as run_pipeline
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError

Pipeline = Sequence[Mapping[str, Any]]

_FIELDS = frozenset(
    [
        "aggregate", "pipeline", "cursor", "explain", "maxTimeMS", "bypassDocumentValidation",
        "hint", "collation", "let", "comment", "readConcern", "writeConcern", "allowDiskUse",
        "lsid", "txnNumber", "autocommit", "startTransaction", "stmtId", "stmtIds",
        "apiVersion", "apiStrict", "apiDeprecationErrors", "collectionUUID", "maxTimeMSOpOnly",
    ]
)  # fmt: skip
_INNER_CHANGE_STREAM = {
    "$lookup": (51047, "within a $lookup's sub-pipeline"),
    "$facet": (40600, "to be used within a $facet stage"),
    "$unionWith": (31441, "within a $unionWith's sub-pipeline"),
}
_CHANGE_STREAM_STAGES = ("$changeStream", "$_internalChangeStream")
_PER_SHARD_STAGES = frozenset({"$collStats", "$indexStats", "$planCacheStats"})


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
            59, "this endpoint does not serve change streams; open them through "
            "mergerouter, or on a shard", code_name="CommandNotFound",
        )  # fmt: skip


async def aggregate(request: Request) -> Document:
    """Run a pipeline.

    Raises:
        CommandError: 238 if the pipeline writes the result of a sharded collection; the errors of
            pipelines and shards.
    """
    pipeline = _checked_pipeline(request)
    cursor = request.command.get("cursor", {})
    size = cursor.get("batchSize") if isinstance(cursor, Mapping) else None
    target = request.command["aggregate"]
    if not isinstance(target, str):
        if pipeline and "$documents" in pipeline[0]:
            documents = _from_given(request, pipeline)
        else:
            documents = await _on_primary(request, request.database, target, pipeline)
        return open_cursor(request, f"{request.database}.$cmd.aggregate", documents, size)
    documents = await run(request, request.namespace, pipeline)
    return open_cursor(request, request.namespace, documents, size)


def _from_given(request: Request, pipeline: Pipeline) -> list[Document]:
    """Run a pipeline over the documents in its ``$documents`` stage."""
    given, rest = pipeline[0]["$documents"], pipeline[1:]
    if isinstance(given, Mapping) and given.keys() == {"$literal"}:
        given = given["$literal"]
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise CommandError(5858203, "$documents must be an array of objects")
    if not all(map(is_single_document, rest)):
        return run_pipeline(given, rest)
    stages = UserStages.of(rest, request.command)
    results = (stages.apply(document) for document in given if stages.wants(document))
    return [result for result in results if result is not None]


async def run(request: Request, namespace: str, pipeline: Pipeline) -> list[Document]:
    """Return the results of a pipeline over a collection or view, sharded or not."""
    placement = request.placement(namespace)
    if placement is None:
        return []
    view = placement.primary.mongod.catalog.view(namespace)
    if view is not None:
        source = f"{request.database}.{view['viewOn']}"
        return await run(request, source, [*view["pipeline"], *pipeline])
    foreign = sorted(set(_foreign_collections(pipeline)))
    sharded = request.catalog.collections
    if placement.sharded is None and not any(
        f"{request.database}.{name}" in sharded for name in foreign
    ):
        async with request.hold(namespace):
            name = namespace.partition(".")[2]
            return await _on_primary(request, request.database, name, pipeline)
    if pipeline and next(iter(pipeline[-1])) in ("$out", "$merge"):
        raise CommandError(
            238, f"{next(iter(pipeline[-1]))} from a sharded collection is not implemented",
            code_name="NotImplemented",
        )  # fmt: skip
    others = {name: await run(request, f"{request.database}.{name}", []) for name in foreign}
    documents, rest = await _gathered(request, placement, pipeline)
    return run_pipeline(documents, rest, read=lambda name: others.get(name, []))


async def _gathered(
    request: Request, placement: Placement, pipeline: Pipeline
) -> tuple[list[Document], Pipeline]:
    """Return the documents that a pipeline starts from, and the remaining stages."""
    name = placement.namespace.partition(".")[2]
    first = pipeline[0] if pipeline else {}
    filter_ = first.get("$match", {})
    async with request.hold(placement.namespace):
        members = members_for(request, placement, filter_)
        if _PER_SHARD_STAGES & first.keys():
            inner: Document = {"aggregate": name, "pipeline": [first], "cursor": {}}
        else:
            inner = {"find": name, "filter": filter_}
        outcomes = await request.send_all(dict.fromkeys(members, inner))
    used = bool(first.keys() & (_PER_SHARD_STAGES | {"$match"}))
    return all_documents(outcomes), pipeline[1:] if used else pipeline


async def _on_primary(
    request: Request, database: str, target: Any, pipeline: Pipeline
) -> list[Document]:
    primary = request.catalog.primary_of(database)
    if primary is None:
        return []
    options = ("collation", "hint", "allowDiskUse")
    inner = {"aggregate": target, "pipeline": list(pipeline), "cursor": {}}
    inner |= {name: request.command[name] for name in options if name in request.command}
    writes = bool(pipeline) and next(iter(pipeline[-1])) in ("$out", "$merge")
    reply = await request.send(primary, inner, write=writes)
    return list(reply["cursor"]["firstBatch"])


def check_fields(command: Document) -> None:
    """Check an ``aggregate`` as far as servers check it before the client's rights.

    Raises:
        CommandError: 40415 for an unknown field; 2 BadValue without a pipeline; 9 FailedToParse
            without a cursor.
    """
    for name in command:
        if name not in _FIELDS and not name.startswith("$"):
            raise CommandError(
                40415, f"BSON field 'aggregate.{name}' is an unknown field.",
                code_name="Location40415",
            )  # fmt: skip
    if not isinstance(command.get("pipeline"), list):
        raise bad_value("'pipeline' option must be specified as an array")
    if "cursor" not in command and "explain" not in command:
        raise failed_to_parse(
            "The 'cursor' option is required, except for aggregate with the explain argument"
        )


def _checked_pipeline(request: Request) -> Pipeline:
    check_fields(request.command)
    pipeline: list[Any] = request.command["pipeline"]
    for stage in pipeline:
        if not isinstance(stage, Mapping) or len(stage) != 1:
            raise CommandError(
                40323, "A pipeline stage specification object must contain exactly one field."
            )
    _refuse_inner_change_streams(pipeline)
    return pipeline


def _refuse_inner_change_streams(pipeline: Iterable[Any]) -> None:
    for stage in pipeline:
        for name, argument in stage.items() if isinstance(stage, Mapping) else ():
            if name not in _INNER_CHANGE_STREAM or not isinstance(argument, Mapping):
                continue
            branches = argument.values() if name == "$facet" else [argument.get("pipeline")]
            for branch in map(_as_pipeline, branches):
                if any(isinstance(inner, Mapping) and "$changeStream" in inner for inner in branch):
                    code, where = _INNER_CHANGE_STREAM[name]
                    raise CommandError(code, f"$changeStream is not allowed {where}")
                _refuse_inner_change_streams(branch)


def _foreign_collections(pipeline: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for stage in pipeline:
        [(name, argument)] = stage.items()
        if name == "$unionWith" and isinstance(argument, str):
            yield argument
        elif name in ("$lookup", "$graphLookup", "$unionWith") and isinstance(argument, Mapping):
            source = argument.get("from", argument.get("coll"))
            if isinstance(source, str):
                yield source
            yield from _foreign_collections(argument.get("pipeline", ()))
        elif name == "$facet" and isinstance(argument, Mapping):
            for branch in argument.values():
                yield from _foreign_collections(_as_pipeline(branch))


def _as_pipeline(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()
