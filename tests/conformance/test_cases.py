"""Every recorded case, run through the whole router: it answers as the real mongos did."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from bson import Int64

from tests.conformance.recorded_workload import Workload
from tests.conformance.streams import Event, Stream, kinds
from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess
from tests.harness.until import Deadline
from tests.recordings.likeness import VARIES, assert_same
from tests.recordings.recorded import cases

FRAGMENTS = sorted(name for name, case in cases().items() if "steps" not in case)
CONVERSATIONS = sorted(
    name
    for name, case in cases().items()
    if "steps" in case and any("getMore" in step["command"] for step in case["steps"][1:])
)
# These cases share one cursor, so they are run as one conversation.
ON_AN_OPEN_CURSOR = [
    "getMore-wrong-collection",
    "getMore-negative-batch",
    "killCursors",
    "getMore-after-kill",
]
IN_PART = {"serverStatus", "explain"}
REFUSED_BY_THE_ROUTER = {
    "admin-without-allChanges", "bad-match", "on-config", "on-config-db", "on-local", "on-view",
    "passthrough-unknown", "resume-invalidate", "resumeAfter-invalidate", "token-empty-string",
    "token-nothex", "token-odd", "token-truncated", "token-version9",
}  # fmt: skip
"""Refused openings that need no mongos: the router passes all others on to it."""

LACKING = {"replSetGetStatus": "this command", "collation": "collations"}
"""Cases of what the embedded cluster does not have."""

ON_A_DROPPED_COLLECTION = {"resumeAfter-drop", "startAfter-invalidate"}
"""Cases whose end depends on how the shards' cluster times interleave."""
SINGLE = sorted(cases().keys() - {*FRAGMENTS, *CONVERSATIONS, *ON_AN_OPEN_CURSOR, *IN_PART})
_DIFFERS = VARIES | {"counter", "databases", "shards", "parsed"}

Document = Mapping[str, Any]


def marked(names: list[str]) -> list[ParameterSet]:
    """Return the cases as test parameters, marked where only real servers answer so."""
    parameters = []
    for name in names:
        marks = []
        first = cases()[name]["steps"][0]
        refused = "aggregate" in first["command"] and not first["reply"]["ok"]
        if refused and name not in REFUSED_BY_THE_ROUTER:
            marks.append(on_real_servers("checks of change streams' requests"))
        if name in LACKING:
            marks.append(on_real_servers(LACKING[name]))
        parameters.append(pytest.param(name, marks=marks))
    return parameters


@pytest.fixture
async def raw(router: RouterProcess) -> AsyncIterator[RawClient]:
    async with await RawClient.connect(router.port) as raw:
        await raw.command("admin", {"hello": 1})
        yield raw


def test_every_case_is_covered() -> None:
    assert {*CONVERSATIONS} >= ON_A_DROPPED_COLLECTION
    assert len(SINGLE) + len(CONVERSATIONS) + len(FRAGMENTS) + len(ON_AN_OPEN_CURSOR) == 133
    assert len(cases()) == 133 + len(IN_PART)


def test_the_embedded_shards_drop_at_the_recorded_times(
    cluster: TestCluster, workload: Workload
) -> None:
    assert cluster.real or workload.drops_at_one_time


@pytest.mark.parametrize("name", marked(SINGLE))
async def test_a_single_command_gets_the_recorded_answer(
    raw: RawClient, workload: Workload, name: str
) -> None:
    case = cases()[name]
    [step] = case["steps"]
    reply = await raw.command(case["db"], workload.here(step["command"]))
    assert_same(dict(reply), workload.here(step["reply"]), varies=_DIFFERS)


@pytest.mark.parametrize("name", marked(CONVERSATIONS))
async def test_a_conversation_gets_the_recorded_answers(
    raw: RawClient, cluster: TestCluster, workload: Workload, name: str
) -> None:
    if name in ON_A_DROPPED_COLLECTION and cluster.real and not workload.drops_at_one_time:
        pytest.skip("the shards dropped the collection at other times than for the recording")
    case = cases()[name]
    opening, *readings = case["steps"]
    command = workload.here(opening["command"])
    reply = await raw.command(case["db"], command)
    assert_opened(reply, workload.here(opening["reply"]), command)
    cursor_id = Int64(reply["cursor"]["id"])
    recorded = [
        event
        for step in readings
        if "cursor" in step["reply"]
        for event in step["reply"]["cursor"]["nextBatch"]
    ]
    last = readings[-1]["reply"]
    ends = not last["ok"] or last["cursor"]["id"] == 0
    events: list[Event] = []
    deadline = Deadline()
    asked = 0
    while asked < len(readings) or len(events) < len(recorded) or (ends and reply["ok"]):
        deadline.check("more events", events)
        more = {**readings[0]["command"], "getMore": cursor_id, "maxTimeMS": 100}
        reply = await raw.command(case["db"], more)
        asked += 1
        if not reply["ok"] or not reply["cursor"]["id"]:
            break
        if readings[0]["reply"]["ok"]:  # else empty batches may come before the recorded error
            assert list(reply) == list(readings[0]["reply"])
            assert list(reply["cursor"]) == list(readings[0]["reply"]["cursor"])
            assert reply["cursor"]["ns"] == readings[0]["reply"]["cursor"]["ns"]
        assert len(reply["cursor"]["nextBatch"]) <= more.get("batchSize", 1000)
        events += reply["cursor"]["nextBatch"]
    if ends:
        assert_same(dict(reply), workload.here(last), varies=VARIES - {"id"})
    compare(events[: len(recorded)], recorded, workload, command)
    if reply["ok"]:
        await raw.command(case["db"], {"killCursors": "x", "cursors": [cursor_id]})


def compare(
    events: list[Event], recorded: list[Event], workload: Workload, command: Document
) -> None:
    """Compare events with this run's history and, if the shards interleave alike, the recording."""
    start = command["pipeline"][0]["$changeStream"]
    if command["aggregate"] == 1 and events:
        assert events == workload.after(start["resumeAfter"]["_data"], len(events))
    if [_about(e) for e in events] != [_about(e) for e in recorded]:
        together = set() if workload.drops_at_one_time else {"drop"}
        several = {"insert", "update", "replace", "delete"} | together
        assert {*kinds(events), *kinds(recorded)} <= several
        if command["aggregate"] != 1:  # else they have been compared
            abouts = ([str(_about(each)) for each in found] for found in (events, recorded))
            assert Counter(next(abouts)) == Counter(next(abouts))
        return
    for ours, theirs in zip(events, recorded, strict=True):
        assert list(ours) == list(theirs)
        assert list(ours.get("documentKey", ())) == list(theirs.get("documentKey", ()))


def _about(event: Event) -> tuple[Any, Any]:
    return event["operationType"], event.get("ns")


def assert_opened(reply: Document, recorded: Document, command: Document) -> None:
    """Check the shape of a successful opening and, if the stream resumed, its starting token."""
    assert reply["ok"], reply
    starts = command["pipeline"][0]["$changeStream"].keys() & {
        "resumeAfter",
        "startAfter",
        "startAtOperationTime",
    }
    varies = VARIES if starts else VARIES | {"_data"}
    assert_same(dict(reply), recorded, varies=varies)
    assert reply["cursor"]["id"] > 0


async def test_a_conversation_on_an_open_cursor_gets_the_recorded_answers(
    raw: RawClient, workload: Workload
) -> None:
    opening = {"aggregate": "flat", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    cursor_id = (await raw.command("rec", opening))["cursor"]["id"]
    recorded_id = cases()["getMore-wrong-collection"]["steps"][0]["command"]["getMore"]
    for name in ON_AN_OPEN_CURSOR:
        [step] = cases()[name]["steps"]
        command = {
            **{k: _swap(v, recorded_id, cursor_id) for k, v in step["command"].items()},
            **({"maxTimeMS": 50} if "getMore" in step["command"] else {}),
        }
        reply = await raw.command("rec", command)
        expected = {k: _swap(v, recorded_id, cursor_id) for k, v in step["reply"].items()}
        assert_same(dict(reply), expected, varies=VARIES - {"id"} | {"_data"})


def _swap(value: Any, old: int, new: int) -> Any:
    """Replace one cursor's id by another's, in messages as well."""
    if isinstance(value, str):
        return value.replace(str(old), str(new))
    if isinstance(value, list):
        return [_swap(item, old, new) for item in value]
    if isinstance(value, dict):
        return {name: _swap(item, old, new) for name, item in value.items()}
    return Int64(new) if value == old else value


@pytest.mark.parametrize("name", FRAGMENTS)
def test_resuming_after_a_fragment_gives_the_remaining_fragments(
    client: Client, workload: Workload, name: str
) -> None:
    case = cases()[name]
    images = {"fullDocument": "required", "fullDocumentBeforeChange": "required"}
    start = {"resumeAfter": workload.here(case["after"]["_id"])}
    with Stream(
        client, case["db"], "big", {**images, **start}, [{"$changeStreamSplitLargeEvent": {}}]
    ) as stream:
        assert stream.pbrt == start["resumeAfter"]
        fragments = stream.read(len(case["next"]))
    shown = [
        {"_id": each["_id"], "splitEvent": each["splitEvent"], "fields": list(each)}
        for each in fragments[: len(case["next"])]
    ]
    assert shown == workload.here(case["next"])


@on_real_servers("explain")
async def test_explain_option_shows_the_recorded_stages(raw: RawClient, workload: Workload) -> None:
    [step] = cases()["explain"]["steps"]
    recorded = step["reply"]
    reply = await raw.command("rec", step["command"])
    fields = list(recorded)
    fields.insert(fields.index("command"), "mergerouter")  # where the router reads the stream
    assert list(reply) == fields
    for name in ("serverInfo", "serverParameters", "command", "splitPipeline"):
        assert list(reply[name]) == list(recorded[name])
    assert reply["mergeType"] == recorded["mergeType"]
    assert reply["command"] == recorded["command"]
    assert reply["splitPipeline"]["mergerPart"] == recorded["splitPipeline"]["mergerPart"]
    assert reply["shards"].keys() == recorded["shards"].keys()
    for shard, ours in reply["shards"].items():
        theirs = recorded["shards"][shard]
        assert list(ours) == list(theirs)
        planner = theirs["stages"][0]["$cursor"]["queryPlanner"]
        assert ours["stages"][0]["$cursor"]["queryPlanner"]["namespace"] == planner["namespace"]
        # Only mongos adds this internal stage to its requests to shards.
        inner = {"internalCheckTopologyChange"}
        assert _stages(ours["stages"]) == [s for s in _stages(theirs["stages"]) if s not in inner]


def _stages(stages: list[Document]) -> list[str]:
    return [
        stage["$changeStream"]["stage"] if "$changeStream" in stage else next(iter(stage))
        for stage in stages
        # mongos adds a $match that detects new shards among the shards' own events.
        if "$match" not in stage
    ]


async def test_agents_find_the_fields_of_server_status_that_they_read(raw: RawClient) -> None:
    recorded = cases()["serverStatus"]["steps"][0]["reply"]
    for _ in range(2):
        reply = await raw.command("nowhere", {"noSuchCommand": 1})
        assert reply["code"] == 59
    before = await raw.command("admin", {"serverStatus": 1})
    await raw.command("admin", {"ping": 1})
    reply = await raw.command("admin", {"serverStatus": 1})
    shared = [name for name in recorded if name in reply]
    assert shared == [name for name in reply if name in recorded]
    assert {"host", "version", "process", "uptime", "connections", "opcounters"} <= set(shared)
    assert reply["process"] == recorded["process"]
    for section in ("network", "transactions", "opcounters"):
        for name, value in reply[section].items():
            assert type(value) is type(recorded[section][name]), name
    assert {"physicalBytesIn", "physicalBytesOut"} <= set(reply["network"])
    assert {"currentOpen", "totalStarted", "totalCommitted"} <= set(reply["transactions"])
    assert "authentication" in reply["security"]
    commands = reply["metrics"]["commands"]
    assert commands["<UNKNOWN>"] >= 2
    pings = [each["metrics"]["commands"].get("ping", {"total": 0}) for each in (before, reply)]
    assert pings[1] == {"failed": 0, "total": pings[0]["total"] + 1}
    kinds = reply["opcounters"]
    assert sum(kinds.values()) == reply["network"]["numRequests"]
