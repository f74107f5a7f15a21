"""Tests of the Spark source."""
