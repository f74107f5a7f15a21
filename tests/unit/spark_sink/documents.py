"""Documents with values of all types, and documents at random."""

from datetime import UTC, datetime
from uuid import UUID

from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import strategies as st

MONGO_VALUES = {
    "id": ObjectId("0123456789abcdef01234567"),
    "when": datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=UTC),
    "long ago": DatetimeMS(-(10**15)),
    "decimal": Decimal128("1.10"),
    "long": Int64(2**53 + 1),
    "bytes": b"\x00\xff",
    "uuid": Binary.from_uuid(UUID(int=7), UuidRepresentation.STANDARD),
    "code": Code("return 1"),
    "scoped": Code("return x", {"x": 1}),
    "pattern": Regex("^a", "i"),
    "time": Timestamp(5, 6),
    "ref": DBRef("orders", 1),
    "max": MaxKey(),
    "nothing": None,
    "list": [1, 2.5, "ä", [True]],
}


scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**63 - 1)
    | st.floats()
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.datetimes(timezones=st.just(UTC))
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
)


names = st.text(alphabet="aä_.1", max_size=3)


documents = st.dictionaries(
    names,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
