"""`mergerouter demo`: run all parts together and compare written with delivered changes.

The demo is a user of the project, not a part of it: it starts the command line programs and talks
to them through a driver and Spark.
"""
