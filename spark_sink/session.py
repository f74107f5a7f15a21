"""A small local Spark, ready to read the router."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_sink.data_source import MergerouterDataSource
from spark_sink.java_runtime import ensure_java

# Columns whose values rarely repeat. Parquet's writer would collect them in dictionaries, compare
# each value with others, and give the dictionary up after a while.
_UNIQUE = ("token", "documentKey", "fullDocument", "fullDocumentBeforeChange", "event")
PARQUET_SETTINGS = {f"parquet.enable.dictionary#{name}": "false" for name in _UNIQUE}
"""Settings with which Spark writes the source's rows to Parquet at less cost (docs/spark.md)."""


def local_session(
    app_name: str = "mergerouter", *, cores: int = 2, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A SparkSession in this machine's memory, with the source registered and no web UI.

    cores: worker threads; settings: further Spark configuration, which wins.
    Raises JavaNotFoundError.
    """
    ensure_java()
    # Spark starts Python workers with "python3" unless told otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    configuration = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        # The bar redraws its line, and would fill a log file with fragments.
        "spark.ui.showConsoleProgress": "true" if sys.stderr.isatty() else "false",
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in configuration.items():
        builder = builder.config(name, value)
    return _prepared(builder.getOrCreate(), settings)


def job_session(app_name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of a job, with the source registered.

    Under `spark-submit` its master, its memory and all else are what was submitted; elsewhere it is
    local_session, with a thread for each core. settings: further Spark configuration.
    Raises JavaNotFoundError.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # which spark-submit sets
        return local_session(app_name, cores=os.cpu_count() or 2, settings=settings)
    builder = SparkSession.builder.appName(app_name)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    return _prepared(builder.getOrCreate(), settings)


def _prepared(spark: SparkSession, settings: Mapping[str, str] | None) -> SparkSession:
    """The session with PARQUET_SETTINGS, unless `settings` has others, and with the source."""
    for name, value in PARQUET_SETTINGS.items():
        # The builder would warn that these are no properties of Spark's.
        if name not in (settings or {}):
            spark.conf.set(name, value)
    register(spark)
    return spark


# What Spark leaves out of plans, by the names and the values of options.
_REDACTED = "spark.sql.redaction.options.regex"
_CONNECTION_STRING = r"mongodb(\+srv)?://"


def register(spark: SparkSession) -> None:
    """Make `spark.readStream.format("mergerouter")` known to a session. May be called again.

    Connection strings, which may hold a password, no longer appear in the session's plans, and so
    not in event logs and the user interface either.
    """
    spark.dataSource.register(MergerouterDataSource)
    redacted = spark.conf.get(_REDACTED) or ""
    if _CONNECTION_STRING not in redacted:
        both = f"{redacted}|{_CONNECTION_STRING}" if redacted else _CONNECTION_STRING
        spark.conf.set(_REDACTED, both)
