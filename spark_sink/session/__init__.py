"""Sessions of Spark with the source registered, and the Java that they need.

The entrance is `spark_session.local_session`.
"""
