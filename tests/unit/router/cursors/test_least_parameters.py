"""With each server parameter at its minimum, streams deliver and quiet ones cause little load."""

import pytest

from router.config import parameters
from router.config.parameters import PARAMETERS, parse_parameters, settings_of_streams
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream

OF_STREAMS = [
    each.name for each in parameters.OF_STREAMS.values() if not isinstance(each.default, str)
]


# Time limits so short may pass on a busy machine.
@pytest.mark.parametrize("name", [each for each in OF_STREAMS if not each.endswith("TimeoutMs")])
async def test_a_stream_works_with_each_parameter_at_its_minimum(
    cluster: ScriptedCluster, name: str
):
    least = PARAMETERS[name].least
    limits = settings_of_streams(parse_parameters({name: least}))
    registry = cluster.registry(limits)
    cursor, _ = await registry.open(stream(), OWNER)
    cluster.shards["s0"].insert(105, 1)
    cluster.noop(106)
    with registry.checkout(cursor.cursor_id, OWNER):
        assert await read_until(cursor, 1) == [1]
    for member in cluster.members:
        member.commands.clear()
    if cursor.cursor_id in registry:
        with registry.checkout(cursor.cursor_id, OWNER):
            assert (await cursor.next_batch(None, 0.3)).events == []
    asked = sum(member.commands.total() for member in cluster.members)
    assert asked < 4 * (0.3 / 0.05 + 10), "a quiet stream does not spin"


@pytest.mark.parametrize("name", OF_STREAMS)
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e300"])
def test_a_parameter_out_of_bounds_is_refused(name: str, value: str):
    with pytest.raises(ValueError, match=name):
        parse_parameters({name: value})
