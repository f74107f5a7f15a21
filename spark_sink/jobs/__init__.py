"""The job that `mergerouter job` starts, and its status and verification.

The entrance is `tables_job.TablesJob`.
"""
