"""Any aggregate is a valid request, no change stream, or refused with a command error."""

import math
from contextlib import suppress
from typing import Any

from bson import Binary, Int64, ObjectId, Regex, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.request.accepted import is_change_stream
from router.request.stream_request import StreamRequest, parse_request
from shard_client.errors import CommandError
from shard_client.wire.documents import encode

SCALARS = st.sampled_from(
    [None, True, 0, 1, -1, 1.5, math.nan, "", "c", "$x", "a\0b", b"", Int64(2**62), ObjectId(),
     Timestamp(1, 1), Timestamp(0, 0), Regex("("), Binary(b"x" * 16, 4), "default", "updateLookup"]
)  # fmt: skip
TOKENS = st.builds(
    lambda data: {"_data": data},
    SCALARS | st.text("0123456789ABCDEF", max_size=40).map(lambda rest: "82" + rest),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | TOKENS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$match", "$expr", "_data", ""]), inner, max_size=3)
    ),
    max_leaves=5,
)
OPTIONS = st.dictionaries(
    st.sampled_from(
        ["resumeAfter", "startAfter", "startAtOperationTime", "fullDocument",
         "fullDocumentBeforeChange", "showExpandedEvents", "showSystemEvents", "fromRouter",
         "allChangesForCluster", "showMigrationEvents", "allowToRunOnConfigDB", "x"]
    ),
    VALUES,
    max_size=3,
)  # fmt: skip
STAGES = st.dictionaries(
    st.sampled_from(["$match", "$project", "$addFields", "$redact", "$changeStream", "$group",
                     "$changeStreamSplitLargeEvent", "$_internalChangeStreamTransform", ""]),
    VALUES,
    max_size=2,
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(["cursor", "collation", "let", "hint", "comment", "readConcern", "explain",
                     "$readPreference", "writeConcern", "passthroughToShard", "txnNumber", "lsid",
                     "maxTimeMS", "allowDiskUse", "autocommit", "startTransaction", "x"]),
    VALUES | st.just({"shard": "s0"}),
    max_size=3,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(
    database=st.sampled_from(["db", "admin", "config", "local", ""]),
    target=SCALARS,
    first=OPTIONS | VALUES,
    rest=st.lists(STAGES | VALUES, max_size=2),
    fields=FIELDS,
)
def test_any_aggregate_is_parsed_or_refused(
    database: str, target: Any, first: Any, rest: list[Any], fields: dict[str, Any]
) -> None:
    pipeline = [{"$changeStream": first}, *rest]
    command = {"aggregate": target, "pipeline": pipeline, "cursor": {}} | fields
    with suppress(CommandError):
        request = parse_request(database, command)
        assert isinstance(request, StreamRequest)
        assert request.sharing_key == parse_request(database, command).sharing_key


@settings(max_examples=150, deadline=None)
@given(VALUES, VALUES, FIELDS)
def test_any_command_is_recognized_as_a_stream_or_not(
    name: Any, pipeline: Any, fields: dict[str, Any]
) -> None:
    command = encode({"aggregate": name, "pipeline": pipeline, **fields})
    assert is_change_stream(command) in (True, False)
