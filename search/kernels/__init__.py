"""Kernels written anew, where no schedule makes of the compiler's text what is wanted."""
