"""Wait until a job's tables have all writes up to now, then query them with DuckDB.

Usage: orders_report.py [OUT], with the router's connection string in MERGEROUTER_URI
"""

import sys

import duckdb
from deltalake import DeltaTable

from spark_sink import Job


def report(out: str = "orders", **settings: str) -> str:
    """Return a line about all orders written before the call; `settings` may name the `uri`."""
    Job(out, **settings).wait("now", timeout=600)
    with duckdb.connect() as database:
        database.register("orders", DeltaTable(f"{out}/current").to_pyarrow_dataset())
        query = "SELECT count(*), sum((fullDocument->>'$.total')::int) FROM orders"
        count, total = database.sql(query).fetchall()[0]
    return f"{count} orders, total {total}"


if __name__ == "__main__":
    print(report(*sys.argv[1:2]), flush=True)
