"""Measuring by file, where no network reaches."""
