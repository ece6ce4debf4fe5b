"""Building, sandboxed running, the correctness gate, statistics and verdicts."""
