"""Families of schedules: each module makes a `Space` for the kernels it fits."""
