"""The job that `mergerouter job` starts: its settings, folder and query.

The entrance is `job_query.JobQuery`. What a job tells is in `report`, and what is read of its past
batches, or made of them again, in `history`.
"""
