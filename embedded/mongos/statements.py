"""Single statements of bulk writes, as commands for shards."""

from collections.abc import Mapping
from typing import Any

from embedded.mongos.bulk import BulkResult
from embedded.mongos.members import replies_of
from embedded.mongos.request import Placement, Request
from embedded.storage.bson_values import Document


async def send_statement(
    request: Request,
    placement: Placement,
    targets: set[str] | None,
    statement: Mapping[str, Any],
    position: int,
    result: BulkResult,
) -> None:
    """Run one update or delete statement on ``targets`` (``None``: the primary shard).

    Args:
        request: the client's command.
        placement: the location of the namespace.
        targets: the ids of the shards.
        statement: the statement.
        position: its index in the client's command.
        result: collects the counts and write errors.

    Raises:
        CommandError: a shard's error for the whole command.
    """
    field = "updates" if request.name == "update" else "deletes"
    command = bulk_command(request, field, [statement], [position], ordered=True)
    members = [placement.primary]
    if targets is not None:
        members = [shard for shard in request.catalog.shards if shard.id in targets]
    if len(members) == 1:
        result.add(await request.send(members[0], command, write=True), [position])
        return
    outcomes = await request.send_all(dict.fromkeys(members, command), write=True)
    for reply in replies_of(outcomes).values():
        result.add(reply, [position])


def bulk_command(
    request: Request, field: str, statements: list[Any], positions: list[int], *, ordered: bool
) -> Document:
    """Return a shard's command for some of the client's statements.

    Args:
        request: the client's command.
        field: ``documents``, ``updates`` or ``deletes``.
        statements: the statements.
        positions: their indexes in the client's command.
        ordered: whether the shard stops at the first error.
    """
    command: Document = {request.name: request.collection, field: statements, "ordered": ordered}
    if request.retryable:
        first = request.command.get("stmtId", 0)
        given = request.command.get("stmtIds")
        command["stmtIds"] = [given[at] if given else first + at for at in positions]
    return command
