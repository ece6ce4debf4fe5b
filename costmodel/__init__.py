"""Learned ranking of candidates. Knows nothing of TVM's search or of Ray."""
