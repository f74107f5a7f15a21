"""The parts of a job: its settings, folder, query and commits. `spark_sink.running` runs it.

The entrance is `job_query.JobQuery`. What a job tells is in `report`, and what is read of its past
batches, or made of them again, in `history`.
"""
