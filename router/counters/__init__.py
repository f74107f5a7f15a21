"""What a process counts and reports, and the sums over a router's processes."""
