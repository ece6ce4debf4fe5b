"""Rows that are folded and used again, on a GPU: each in the registers of a few warps.

`rows` reads a kernel as stages over rows, `point` says what a point is and what the hardware should
make of it, `writer` puts the kernel together, `space` is the family.
"""
