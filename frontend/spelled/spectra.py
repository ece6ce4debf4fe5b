"""Fourier transforms of known lengths: products with matrices of sines and cosines.

A transform of n numbers takes n log n operations by other ways, which no kernel here knows; of some
hundreds, as in spectra of speech, a product is as quick, and is tuned as one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tunefarm.frontend.spelled.site import Site

_MOST = 2**24
"""Elements of a matrix."""


def spectrum(site: Site) -> bool:
    return _frames(site) if site.node.op_type == "STFT" else _whole(site)


def _whole(site: Site) -> bool:
    """DFT of (..., n, ...) along an axis; the last axis has real and imaginary parts, or real ones
    alone."""
    shape = site.shape(0)
    if shape is None or (site.input(1) and site.value(1) is None):
        return False
    rank, parts, given = len(shape), shape[-1], site.value(1)
    if site.opset < 20:
        axis = site.attribute("axis", 1)
    elif site.input(2):
        place = site.value(2)
        if place is None:
            return False
        axis = int(place.item())
    else:
        axis = -2
    axis %= rank
    length = int(given.item()) if given is not None else shape[axis]
    used = min(length, shape[axis])
    inverse, half = site.attribute("inverse", 0), site.attribute("onesided", 0)
    bins = length // 2 + 1 if half else length
    if (inverse and half) or used * parts * bins * 2 > _MOST:
        return False
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    turned = site.emit("Transpose", site.input(0), perm=order)
    if used < shape[axis]:
        turned = site.slice(turned, rank - 2, 0, used)
    outer = [shape[k] for k in order[:-2]]
    weights = _weights(length, used, bins, parts, 1 if inverse else -1)
    weights = weights / length if inverse else weights
    rows = site.reshape(turned, *outer, used * parts)
    made = site.emit("MatMul", rows, site.constant(weights, site.dtype(0)))
    made = site.reshape(made, *outer, bins, 2)
    site.give(0, site.emit("Transpose", made, perm=[order.index(k) for k in range(rank)]))
    return True


def _frames(site: Site) -> bool:
    """STFT of (batch, samples, 1): a convolution whose stride is the frames' step."""
    shape, step, window, length = site.shape(0), site.value(1), site.value(2), site.value(3)
    if shape is None or step is None or (site.input(2) and window is None):
        return False
    if (site.input(3) and length is None) or (len(shape) == 3 and shape[2] != 1):
        return False
    if length is not None:
        size = int(length.item())
    elif window is not None:
        size = window.size
    else:
        return False
    bins = size // 2 + 1 if site.attribute("onesided", 1) else size
    if size * bins * 2 > _MOST:
        return False
    weights = _weights(size, size, bins, 1, -1).reshape(size, bins, 2).transpose(2, 1, 0)
    if window is not None:
        weights = weights * window.astype(np.float64)
    kernels = weights.reshape(2 * bins, 1, size)
    batch, samples = shape[:2]
    signal = site.reshape(site.input(0), batch, 1, samples)
    stride = int(step.item())
    made = site.emit("Conv", signal, site.constant(kernels, site.dtype(0)), strides=[stride])
    frames = (samples - size) // stride + 1
    made = site.reshape(made, batch, 2, bins, frames)
    site.give(0, site.emit("Transpose", made, perm=[0, 3, 2, 1]))
    return True


def _weights(length: int, used: int, bins: int, parts: int, sign: int) -> NDArray[np.float64]:
    """(used * parts, bins * 2): of a transform of this length its first rows and columns, as what
    real and imaginary parts of the one give of those of the other."""
    turns = np.outer(np.arange(used), np.arange(bins)) % length  # exact, where angles are large
    angles = sign * 2 * np.pi * turns / length
    real = np.stack([np.cos(angles), np.sin(angles)], -1)
    imaginary = np.stack([-np.sin(angles), np.cos(angles)], -1)
    both = np.stack([real, imaginary][:parts], 1)  # (used, parts, bins, 2)
    return both.reshape(used * parts, bins * 2)
