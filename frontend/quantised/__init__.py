"""Quantised models, spelled as whole numbers and their scales."""
