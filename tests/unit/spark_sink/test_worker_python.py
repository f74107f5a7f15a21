"""The Python that Spark starts for the source, and what the package imports in it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.spark_session import register, require_packages


def test_a_python_without_the_packages_is_refused_by_name() -> None:
    require_packages(sys.executable)
    with pytest.raises(OptionError, match="set the variable PYSPARK_PYTHON to") as raised:
        require_packages("no-such-python")
    assert sys.executable in str(raised.value)
    assert "'no-such-python'" in str(raised.value)


def test_a_python_without_numpy_is_refused_before_its_first_task(tmp_path: Path) -> None:
    python = tmp_path / "python"
    lacks = "ModuleNotFoundError: No module named 'numpy'"
    python.write_text(f'#!/bin/sh\ncase "$2" in *numpy*) echo "{lacks}" >&2; exit 1;; esac\n')
    python.chmod(0o755)
    with pytest.raises(OptionError, match="No module named 'numpy'"):
        require_packages(str(python))


def test_the_sink_is_refused_where_an_attempt_of_a_task_may_outlive_its_batch() -> None:
    """A delete leaves no token, so a late insert of an earlier batch would restore the document."""
    registered: list[Any] = []
    settings, unset = {"spark.speculation": "true"}, SimpleNamespace(get=print, set=print)
    context = SimpleNamespace(
        pythonExec=sys.executable,
        environment={},
        master="local[1]",
        defaultParallelism=1,
        getConf=lambda: settings,
    )
    catalog = SimpleNamespace(register=registered.append)
    spark: Any = SimpleNamespace(sparkContext=context, dataSource=catalog, conf=unset)
    for speculation in ("true", "false"):
        settings["spark.speculation"] = speculation
        register(spark)
    refuses, accepts = (kind({"uri": "mongodb://router"}) for kind in registered)
    schema = StructType().add("token", "string").add("event", "binary")
    for writer in (refuses.writer, refuses.streamWriter):
        with pytest.raises(OptionError, match=r"the sink requires spark\.speculation=false"):
            writer(schema, overwrite=False)
    assert accepts.writer(schema, overwrite=False) is not None


def test_the_package_shows_its_names_and_imports_pyspark_at_first_use() -> None:
    script = "import spark_sink, sys; print(*dir(spark_sink), 'pyspark' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE)
    assert shown.stdout.split() == [
        *(b"Job", b"apply_changes", b"infer_schema", b"local_session", b"parse_documents"),
        *(b"read_at", b"register", b"verify", b"False"),
    ]


def test_a_start_that_only_checks_its_options_imports_no_reader() -> None:
    heavy = ("pyarrow", "spark_sink.source.readers", "spark_sink.mongodb_sink.writers")
    imported = f"print([m for m in {heavy} if m in sys.modules])"
    script = f"import sys, spark_sink.source.data_source; {imported}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
