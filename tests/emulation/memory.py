"""Memory as a kernel sees it: bytes behind a pointer, whatever shape and strides the tensor has."""

from __future__ import annotations

import torch

GARBAGE = 0xAA


class OutOfBoundsError(RuntimeError):
    """A kernel would have read or written behind the end of an allocation."""


def _span(tensor: torch.Tensor, start: int, count: int, what: str) -> torch.Tensor:
    storage = tensor.untyped_storage()
    first = tensor.storage_offset() * tensor.element_size() + start
    if first < 0 or first + count > storage.nbytes():
        raise OutOfBoundsError(
            f"{what}: the kernel touches bytes {first} to {first + count} of an allocation of {storage.nbytes()} bytes "
            f"(tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}, {tensor.dtype})"
        )
    return torch.empty(0, dtype=torch.uint8).set_(storage, first, (count,), (1,))


def read(tensor: torch.Tensor, count: int, dtype: torch.dtype, what: str) -> torch.Tensor:
    """Return the `count` values of `dtype` that lie at the tensor's pointer; strides and shape are ignored."""
    return _span(tensor, 0, count * dtype.itemsize, what).clone().view(dtype)


def read_rows(
    tensor: torch.Tensor, rows: int, columns: int, stride: int, dtype: torch.dtype, what: str
) -> torch.Tensor:
    """Return a [rows, columns] matrix whose rows start `stride` values apart; values of a row are adjacent."""
    size = dtype.itemsize
    if rows == 0 or columns == 0:
        return torch.empty(rows, columns, dtype=dtype)
    extent = ((rows - 1) * stride + columns) * size
    flat = _span(tensor, 0, extent, what)
    return flat.as_strided((rows, columns * size), (stride * size, 1)).contiguous().view(dtype)


def write(tensor: torch.Tensor, values: torch.Tensor, what: str) -> None:
    """Store the values, in order, at the tensor's pointer; strides and shape are ignored."""
    flat = values.contiguous().flatten().view(torch.uint8)
    _span(tensor, 0, flat.numel(), what).copy_(flat)


def write_rows(tensor: torch.Tensor, values: torch.Tensor, stride: int, what: str) -> None:
    """Store a matrix with rows that start `stride` values apart at the tensor's pointer."""
    rows, columns = values.shape
    if rows == 0 or columns == 0:
        return
    size = values.element_size()
    flat = _span(tensor, 0, ((rows - 1) * stride + columns) * size, what)
    flat.as_strided((rows, columns * size), (stride * size, 1)).copy_(values.contiguous().view(torch.uint8))


def write_at(tensor: torch.Tensor, places: torch.Tensor, values: torch.Tensor, what: str) -> None:
    """Store bytes at byte offsets from the tensor's pointer."""
    if places.numel() == 0:
        return
    _span(tensor, 0, int(places.max()) + 1, what)[places.flatten()] = values.flatten()


def fill_with_garbage(tensor: torch.Tensor) -> None:
    """Make the content of a tensor that nothing has written yet recognizable."""
    _span(tensor, 0, tensor.numel() * tensor.element_size(), "allocation").fill_(GARBAGE)
