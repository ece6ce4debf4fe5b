"""Tiles of a product on a GPU's tensor cores, written out as a kernel of our own.

`product` reads a kernel as a product of matrices, `layout` says where a tile's elements lie in
shared memory, `tiling` what follows from any tile, `tile` what a point is and what the hardware
should make of it, `device_text` has the instructions that no compiler writes by itself, `writer`
puts the kernel together, `space` is the family. `plain_tile` shares `product`, `tiling` and most of
`writer`.
"""
