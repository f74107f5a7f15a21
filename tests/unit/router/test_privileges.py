from typing import Any

import pytest

from router.access.authorization import not_authorized
from router.privileges import (
    ALL_DATABASES,
    CLUSTER,
    EVERYTHING,
    STREAM_ACTIONS,
    Privileges,
    Resource,
    stream_resource,
)

ACTIONS = ["find", "changeStream"]


def on(**resource: Any) -> Privileges:
    return Privileges.of([{"resource": resource, "actions": ACTIONS}])


@pytest.mark.parametrize(
    ("privileges", "allowed"),
    [
        (on(db="db", collection="c"), {Resource("db", "c")}),
        (on(db="db", collection=""), {Resource("db"), Resource("db", "c"), Resource("db", "d")}),
        (on(db="", collection="c"), {Resource("db", "c"), Resource("other", "c")}),
        (
            on(db="", collection=""),
            {
                *(Resource("db"), Resource("db", "c"), Resource("db", "d")),
                *(Resource("other", "c"), ALL_DATABASES),
            },
        ),
        (on(db="db", collection="system.views"), {Resource("db", "system.views")}),
        (on(cluster=True), {CLUSTER}),
        (on(db="config", collection=""), {Resource("config"), Resource("config", "d")}),
        (
            Privileges.of(
                [
                    {"resource": {"db": "db", "collection": ""}, "actions": ["find"]},
                    {"resource": {"db": "", "collection": "c"}, "actions": ["changeStream"]},
                ]
            ),
            {Resource("db", "c")},
        ),
    ],
)
def test_which_resources_a_pattern_contains(privileges: Privileges, allowed: set[Resource]) -> None:
    resources = {
        *(Resource("db"), Resource("db", "c"), Resource("db", "d"), Resource("other", "c")),
        *(Resource("db", "system.views"), ALL_DATABASES, CLUSTER),
        *(Resource(each, name) for each in ("config", "local") for name in ("", "d")),
    }
    assert {each for each in resources if privileges.allow(each, *STREAM_ACTIONS)} == allowed
    assert {each for each in resources if on(anyResource=True).allow(each, "find")} == resources
    assert {each for each in resources if EVERYTHING.allow(each, "x")} == resources
    anything = Privileges.of([{"resource": {"anyResource": True}, "actions": ["anyAction"]}])
    assert {each for each in resources if anything.allow(each, "getLog")} == resources


@pytest.mark.parametrize(
    "resource",
    [None, 5, {}, {"db": "db"}, {"db": 1, "collection": ""}, {"anyResource": 1}, {"new": True},
     {"db": "db", "system_buckets": "c"}, {"db": "", "collection": "", "more": 1}],
)  # fmt: skip
def test_unknown_resources_grant_nothing(resource: Any) -> None:
    privileges = Privileges.of([{"resource": resource, "actions": ACTIONS}])
    assert not privileges.allow(Resource("db", "c"), "find")
    assert not Privileges.of([{"resource": {"cluster": True}, "actions": "find"}]).granted


def test_privileges_are_listed_as_they_were_read() -> None:
    listed = [{"resource": {"db": "db", "collection": ""}, "actions": sorted(ACTIONS)}]
    assert Privileges.of(listed).listed() == listed


def test_a_stream_reads_one_resource() -> None:
    assert stream_resource("db", "c") == Resource("db", "c")
    assert stream_resource("db", None) == Resource("db")
    assert stream_resource("admin", None) == ALL_DATABASES


def test_commands_in_messages_are_bounded() -> None:
    command = {"aggregate": "c", "pipeline": ["x" * 100_000], "a": {}, "b": [], "c": 1.0, "d": True}
    assert len(not_authorized("shop", command, None).message) < 20_000
    del command["pipeline"]
    shown = '{ aggregate: "c", a: {}, b: [], c: 1.0, d: true }'
    assert not_authorized("shop", command, None).message.endswith(f" command {shown}")
