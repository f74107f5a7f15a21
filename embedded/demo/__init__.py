"""`mergerouter demo`: the whole way at work, ended by a verdict on what was written and delivered.

It is a user of the project, not a part of it: it starts the command line programs and talks to them
through a driver and Spark, as anybody would.
"""
