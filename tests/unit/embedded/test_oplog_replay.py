"""Property: replaying a member's oplog gives the member's documents."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from embedded.storage.bson_values import identical
from embedded.storage.diff import apply_diff
from tests.unit.embedded.members import Driver

ids = st.integers(0, 5)
scalars = st.integers(-2, 2) | st.sampled_from(["x", None, 1.5, True])
values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(st.sampled_from("pq"), scalars, max_size=2)
)
fields = st.sampled_from(["a", "b", "c.d", "c.e", "arr.1", "arr.0.k"])

operators = st.one_of(
    st.builds(lambda f, v: {"$set": {f: v}}, fields, values),
    st.builds(lambda f, v, g: {"$set": {f: v}, "$unset": {g: 1}}, fields, values, fields),
    st.builds(lambda f, n: {"$inc": {f: n}}, fields, st.integers(-2, 2)),
    st.builds(lambda vs: {"$push": {"arr": {"$each": vs}}}, st.lists(scalars, max_size=3)),
    st.builds(lambda v: {"$pull": {"arr": v}}, scalars),
    st.builds(lambda v: {"$addToSet": {"arr": v}}, scalars),
    st.just({"$pop": {"arr": 1}}),
    st.just({"$rename": {"a": "z"}}),
    st.just({"$set": {"arr": [0, 1, 2]}}),
    st.builds(lambda v: [{"$set": {"a": v}}, {"$unset": "b"}], scalars),
    st.just([{"$set": {"arr": {"$slice": ["$arr", 1]}}}]),
    st.builds(lambda v: {"whole": v}, values),
)  # fmt: skip
statements = st.one_of(
    st.builds(lambda i, v: {"insert": "c", "documents": [{"_id": i, "b": v}]}, ids, values),
    st.builds(
        lambda i, u, up: {"update": "c", "updates": [{"q": {"_id": i}, "u": u, "upsert": up}]},
        ids, operators, st.booleans(),
    ),
    st.builds(
        lambda u: {"update": "c", "updates": [{"q": {}, "u": u, "multi": True}]},
        operators.filter(lambda u: isinstance(u, list) or next(iter(u)).startswith("$")),
    ),
    st.builds(lambda i: {"delete": "c", "deletes": [{"q": {"_id": i}, "limit": 1}]}, ids),
)  # fmt: skip
steps = st.lists(
    st.builds(lambda s: [s], statements) | st.lists(statements, min_size=2, max_size=4),
    max_size=8,
)


def replay(entries: list[Any], documents: dict[Any, Any]) -> None:
    for entry in entries:
        if entry["op"] == "c":
            replay(entry["o"].get("applyOps", []), documents)
        elif entry["op"] == "i":
            assert entry["o"]["_id"] not in documents
            documents[entry["o"]["_id"]] = entry["o"]
        elif entry["op"] == "d":
            del documents[entry["o"]["_id"]]
        elif entry["op"] == "u":
            key, o = entry["o2"]["_id"], entry["o"]
            is_diff = "$v" in o
            documents[key] = apply_diff(documents[key], o["diff"]) if is_diff else o


async def run(driver: Driver, history: list[list[dict[str, Any]]]) -> None:
    """Run each step: a single statement alone, several as a transaction."""
    for step in history:
        if len(step) == 1:
            await driver.run(dict(step[0]))
            continue
        await driver.start()
        for statement in step:
            if "writeErrors" in await driver.within(dict(statement)):
                break
        else:
            await driver.commit()


@settings(max_examples=150, deadline=None)
@given(history=steps)
def test_the_oplog_replays_to_the_documents(history: list[list[dict[str, Any]]]) -> None:
    async def body() -> tuple[list[Any], list[Any]]:
        driver = Driver()
        await driver.run({"create": "c"})
        await run(driver, history)
        return driver.entries("i", "u", "d", "c"), await driver.documents()

    entries, found = asyncio.run(body())
    replayed: dict[Any, Any] = {}
    replay(entries, replayed)
    assert len(found) == len(replayed)
    for document in found:
        assert identical(document, replayed[document["_id"]])
