"""A GPU of paper: runs the PTX of NVIDIA's compiler with NumPy, and says what a GPU would not.

It computes what a GPU computes, up to the rounding of approximate functions, and stops at what a
GPU may pass over in silence: addresses that nobody allocated, threads that read what others write
without a barrier between them, copies that are read before they were waited for. It has no clock:
nothing here says how fast anything is.
"""
