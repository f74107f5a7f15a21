"""`writeStream.format("mergerouter")`: rows as documents of MongoDB, written through the router.

The entrance is `writers.RowWriter`.
"""
