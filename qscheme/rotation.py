"""Rotations of activations by blocks, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_hadamard_matrices: dict[tuple[int, torch.device], Tensor] = {}


def rotate_hadamard(x: Tensor, size: int = 32) -> Tensor:
    """x [..., K] with each block of `size` columns times the orthonormal Sylvester Hadamard matrix.

    Computed in float32, returned in the dtype of x. The matrix is symmetric and its own inverse: rotating twice gives
    x back within rounding. Raises ValueError unless size is a power of two that divides K.
    """
    columns = x.shape[-1]
    if size < 1 or size & (size - 1) or columns % size:
        raise ValueError(f"rotate_hadamard: needs K as a multiple of a power of two, found K {columns} and size {size}")
    blocks = x.to(torch.float32).reshape(*x.shape[:-1], columns // size, size)
    return (blocks @ _hadamard(size, x)).reshape(x.shape).to(x.dtype)


def _hadamard(size: int, like: Tensor) -> Tensor:
    """The matrix on the device of `like`: kept between eager calls, part of the graph when traced."""
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _sylvester(size, like.device)
    matrix = _hadamard_matrices.get((size, like.device))
    if matrix is None:
        with torch.inference_mode(False):
            matrix = _sylvester(size, like.device)
        if like.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _hadamard_matrices[size, like.device] = matrix
    return matrix


def _sylvester(size: int, device: torch.device) -> Tensor:
    """[size, size] with entry (i, j) = (-1)**(bits that i and j share) / sqrt(size)."""
    index = torch.arange(size, device=device)
    shared = index[:, None] & index[None, :]
    for shift in (16, 8, 4, 2, 1):
        shared = shared ^ (shared >> shift)
    return (1 - 2 * (shared & 1)).to(torch.float32) * (1.0 / math.sqrt(size))
