"""The command findAndModify."""

from embedded.commands.request import Request, command
from embedded.commands.write_statements import when_unlocked
from embedded.commands.writes import delete_first, update_first
from embedded.errors import failed_to_parse
from embedded.storage.bson_values import Document
from embedded.storage.projection import project
from embedded.storage.queries import Matcher
from embedded.storage.updates import Update


@command("findAndModify", "findandmodify", in_transactions=True)
async def find_and_modify(request: Request) -> Document:
    """Update, replace or remove one document; return it as before or, with ``new``, as after."""
    session = request.session
    if request.is_retryable and session is not None and session.reply is not None:
        return {**session.reply, "retriedStmtId": 0}
    reply = await when_unlocked(lambda: _run(request))
    if request.is_retryable and session is not None:
        session.reply = dict(reply)
    return reply


def _run(request: Request) -> Document:
    arguments = request.command
    condition = request.field("query", dict, {})
    order = request.field("sort", dict, None)
    fields = request.field("fields", dict, {})
    change_shown = project(fields) if fields else None

    def shown(document: Document | None) -> Document | None:
        return document if document is None or change_shown is None else change_shown(document)

    number = int(arguments.get("stmtId", 0))
    matcher = Matcher(condition)
    if arguments.get("remove"):
        if "update" in arguments or arguments.get("new"):
            raise failed_to_parse("Cannot specify both an update and remove=true")
        gone = delete_first(request, matcher, number, order)
        return {"lastErrorObject": {"n": int(gone is not None)}, "value": shown(gone)}
    if "update" not in arguments:
        raise failed_to_parse("Either an update or remove=true must be specified")
    change = Update(arguments["update"], condition)
    changed = update_first(
        request, matcher, change, number, order=order, upsert=bool(arguments.get("upsert"))
    )
    result: Document = {
        "n": int(changed.after is not None),
        "updatedExisting": changed.before is not None,
    }
    if changed.before is None and changed.after is not None:
        result["upserted"] = changed.after["_id"]
    value = changed.after if arguments.get("new") else changed.before
    return {"lastErrorObject": result, "value": shown(value)}
