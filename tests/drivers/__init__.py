"""Drivers' own test suites and programs, through the router as if it were a mongos."""
