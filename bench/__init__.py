"""Benchmarks that compare ways side by side in one run. `make bench` runs them all.

How a figure comes about:

1. A suite (`__main__.py` lists them) starts servers, real ones, the embedded cluster or
   `replaying_cluster.py`, and a router (`programs.py`). Its ``run`` returns tables of figures.
2. Programs of their own processes read and write: `drain.py` reads a backlog, `watchers.py` is
   many clients, `writes.py` writes at a rate; `spark_backlog.py`, `spark_reads.py` and
   `debezium_engine.py` run Spark and Debezium.
3. CPU and memory are the kernel's counts (`kernel.py`; those of members: `members.py`). The ways
   take turns; where a table says "medians", a figure is the median of their runs.
4. ``write_results`` (`suite.py`) writes the tables to bench/results, or to build/bench unless
   it is a whole run on real servers.

Without servers, `current_tables.py` and `table_files.py` measure current tables, and `micro.py`
single steps of the router.
"""
