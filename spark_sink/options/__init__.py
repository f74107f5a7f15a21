"""The options of the source, under this package's names and Debezium's.

The entrance is `stream_options.parse_options`.
"""
