"""Tiles of float32 products, multiplied by each thread for itself.

`tile` says what a point is and what it should take, `device_text` is the CUDA C++ of a thread's
part, `writer` makes the kernel, and `space` the family. Copies to shared memory, splits of the
depth and what follows the product are those of `tensor_tile`.
"""
