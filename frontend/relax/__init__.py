"""Rewriting graphs as Relax has them, down to the kernels that are tuned."""
