"""Any request line of a feed client is accepted or refused with an error."""

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from router.feed.watch import Watch, parse_watch
from shard_client.errors import CommandError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
    | st.sampled_from([{"$oid": "x"}, {"$date": "x"}, {"$numberLong": "x"}, {"$uuid": "x"},
                       {"$timestamp": {"t": 1, "i": 2}}, {"$binary": "x"}, {"_data": "82"},
                       {"$numberDecimal": "x"}, {"$regularExpression": {}}, {"$code": 1}]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4) | st.just("$match"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.sampled_from(
    ["database", "collection", "pipeline", "json", "resumeAfter", "startAfter", "fullDocument",
     "startAtOperationTime", "fullDocumentBeforeChange", "showExpandedEvents", "heartbeatMs",
     "else"]
)  # fmt: skip


def assert_parsed_or_refused(line: bytes | str) -> None:
    with suppress(ValueError, CommandError):
        assert isinstance(parse_watch(line), Watch)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES | st.sampled_from(["db", "c", "canonical"]), max_size=4))
def test_any_json_object_is_parsed_or_refused(wanted: dict[str, object]) -> None:
    assert_parsed_or_refused(json.dumps(wanted))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40) | VALUES.map(json.dumps))
def test_any_other_line_is_parsed_or_refused(line: bytes | str) -> None:
    assert_parsed_or_refused(line)


def test_deep_nesting_is_refused() -> None:
    assert_parsed_or_refused('{"pipeline": ' + "[" * 100_000 + "]" * 100_000 + "}")
