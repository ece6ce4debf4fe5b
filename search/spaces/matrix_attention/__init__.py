"""Attention of bfloat16 in a processor's matrix registers, as one kernel, written out whole.

A task takes some queries of one head. It brings that head's keys and values into the order in which
registers multiply them (`kernels.paired`), and then takes a block of queries at a time: products
with all keys, whose rows are stored in single precision; a softmax of each row, whose exponentials
are rounded to bfloat16; products of those with the values, divided by their sums. All of it stays
in a core's caches. (Rows are whole, so nothing has to be corrected on the way, as it has to be in
Dao et al., "FlashAttention", NeurIPS 2022.)

`block` says what a point is and what the hardware should make of it, `operand` where queries, keys
and values lie, `writer` puts the kernel together, `space` is the family.
"""
