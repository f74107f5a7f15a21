"""Ready-made Spark jobs, run with `python -m`."""
