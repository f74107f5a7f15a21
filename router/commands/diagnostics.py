"""Diagnostics: small commands that shells, drivers and operators use to inspect a server."""

from router.commands.call import Call
from router.commands.command import answers
from router.commands.other_workers import ask_other_workers
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer
from router.config.log_lines import RECENT, RECENT_LINES
from router.request.field_checks import text
from shard_client.errors import CommandError, ErrorCode

LOG_NAMES = ("global", "startupWarnings")


@answers("ping", help="answer", before_login=True, api_versions=("1",))
async def ping(call: Call) -> Answer:
    """Answer, to show that the router is reachable."""
    return Answer({})


@answers("buildInfo", "buildinfo", help="the version of the cluster", before_login=True)
async def build_info(call: Call) -> Answer:
    """Return the version of the cluster's servers in the form of mongos's buildInfo."""
    return Answer(call.process.server.identity.build_info)


@answers("getCmdLineOpts", help="the command line", admin_only=True, action="getCmdLineOpts")
async def get_cmd_line_opts(call: Call) -> Answer:
    """Return the command line as given and as parsed."""
    process = call.process
    return Answer({"argv": process.arguments, "parsed": process.settings.given()})


@answers("getLog", help="the last log lines", admin_only=True, action="getLog")
async def get_log(call: Call) -> Answer:
    """Return the last lines of the log.

    Raises CommandError: no log has that name, or it is not a string.
    """
    asked = text(call.command, "getLog", "getLog")
    if asked == "*":
        return Answer({"names": list(LOG_NAMES)})
    if asked not in LOG_NAMES:
        raise CommandError(ErrorCode.OperationFailed, f"No log named '{asked}'")
    if asked != "global":
        return Answer({"totalLinesWritten": 0, "log": []})
    total, lines = RECENT.total, list(RECENT.lines)
    for other in await ask_other_workers(call):
        total += other["totalLinesWritten"]
        lines += other["log"]
    lines.sort(key=lambda line: line.partition("}")[0])  # by time; others keep their order
    return Answer({"totalLinesWritten": total, "log": lines[-RECENT_LINES:]})


@answers("listShards", "listshards", help="the shards", admin_only=True, action="listShards")
async def list_shards(call: Call) -> AnyAnswer:
    """Return the shards from config.shards, or the replica set; pass through to a mongos."""
    if call.process.upstream is not None and call.process.cluster.sharded:
        return PASS_THROUGH
    shards = (await call.process.cluster.shards()).hosts
    return Answer(
        {"shards": [{"_id": name, "host": host, "state": 1} for name, host in shards.items()]}
    )
