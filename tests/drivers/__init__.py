"""Drivers' own test suites and programs, run against the router as against a mongos."""
