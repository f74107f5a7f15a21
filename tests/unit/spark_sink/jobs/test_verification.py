"""The filters with which a verifier reads documents by their keys."""

from __future__ import annotations

import bson
from bson.datetime_ms import DatetimeMS

from spark_sink.events.slices import fields_of
from spark_sink.jobs.verification import filter_of
from spark_sink.rows.extended_json import canonical_json


def test_a_date_beyond_pythons_range_can_be_a_key() -> None:
    for value in (DatetimeMS(2**62), DatetimeMS(-(2**62))):
        key = canonical_json(fields_of(bson.encode({"_id": value}))[b"_id"])
        assert key is not None
        assert filter_of([key]) == {"_id": {"$in": [value]}}
