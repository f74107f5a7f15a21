"""The job that `mergerouter job` starts: its tables, folder, status and recovery.

The entrance is `tables_job.TablesJob`.
"""
