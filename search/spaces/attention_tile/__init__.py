"""Attention on a GPU's tensor cores as one kernel, written out whole.

`attention` reads a kernel as two products with a softmax between them, `tile` says what a point is
and what the hardware should make of it, `device_text` has what no compiler writes by itself,
`writer` puts the kernel together, `space` is the family.
"""
