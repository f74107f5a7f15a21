"""Attacks on a router and on the mongos beside it, bounded and over loopback: ``make attack``."""
