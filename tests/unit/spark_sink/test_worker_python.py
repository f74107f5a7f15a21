"""The Python that Spark starts for the source is checked before a query fails in it."""

import sys

import pytest

from spark_sink.errors import OptionError
from spark_sink.session.spark_session import require_packages


def test_a_python_without_the_packages_is_refused_by_name() -> None:
    require_packages(sys.executable)
    with pytest.raises(OptionError, match="set the variable PYSPARK_PYTHON to") as raised:
        require_packages("no-such-python")
    assert sys.executable in str(raised.value)
    assert "'no-such-python'" in str(raised.value)
