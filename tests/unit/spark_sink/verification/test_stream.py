"""What the stream does not tell about a row is no difference."""

from __future__ import annotations

from typing import Any

import bson
import pytest

from spark_sink.verification.stream import _unequal


def row(n: int, document: Any) -> dict[str, Any]:
    event = {"operationType": "update", "n": n, "fullDocument": document}
    return {"n": n, "fullDocument": document and str(document), "event": bson.encode(event)}


@pytest.mark.parametrize(
    ("kept", "certain", "fields"),
    [
        (row(1, {"a": 1}), True, ["fullDocument", "event"]),
        (row(1, {"a": 1}), False, []),  # the post-image has expired
        (row(2, {"a": 1}), False, ["n", "event"]),
        ({**row(1, None), "event": None}, False, ["event"]),
        (row(1, None), True, []),
    ],
)
def test_images_count_while_the_stream_has_them(
    kept: dict[str, Any], certain: bool, fields: list[str]
) -> None:
    assert _unequal(kept, row(1, None), certain=certain) == fields
