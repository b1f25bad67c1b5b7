"""The Triton programs of the weight-only product: one multiplies tiles, one adds up what parts of K gave."""

import triton
import triton.language as tl

from qscheme.kernels.programs.decoding import decode, decode_scale


@triton.jit
def multiply(
    x, weight, scale, zero_point, global_scale, bias, y, m, n, k, part,
    CODES: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, TALL: tl.constexpr, PLACE: tl.constexpr,
    PACKED: tl.constexpr, ZERO: tl.constexpr, OUTER: tl.constexpr, BIAS: tl.constexpr, PARTIAL: tl.constexpr,
    DECODED: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_N, BLOCK_M] of the transpose of y [M, N], over `part` columns of K; sums are float32.

    The weight is the first operand, as matrix units take that one from registers, where it was decoded. PLACE says
    where its scales go: "weight" onto decoded codes, where that is exact, "sum" onto the sum of each group, "row" onto
    the whole sum. A scale is that of TALL rows of the weight and GROUP columns, 0 for all. OUTER divides by a global
    scale, multiplies by it or has none. PARTIAL: the sums are stored as they are, float32 [parts, M, N], for `add_up`.
    """
    decoded: tl.constexpr = tl.float16 if DECODED == "fp16" else tl.bfloat16
    across, down = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    place = tl.program_id(0)
    width = NEIGHBOURS * down  # programs that run together share rows of x and of the weight
    first = place // width * NEIGHBOURS
    height = tl.minimum(across - first, NEIGHBOURS)
    rows = (first + place % width % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = place % width // height * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_columns = rows < m, columns < n
    start = tl.program_id(1) * part
    groups = tl.cdiv(k, GROUP) if GROUP else 1
    of_scales = (columns // TALL if TALL else columns * 0).to(tl.int64) * groups
    x_rows = x + rows.to(tl.int64)[None, :] * k
    stored_k = k // 2 if PACKED else k
    weight_rows = weight + columns.to(tl.int64)[:, None] * stored_k
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    no_zero = tl.full((BLOCK_N, 1), 0, tl.int8)
    for begin in range(start, tl.minimum(start + part, k), BLOCK_K):
        inner = begin + tl.arange(0, BLOCK_K)
        inside = in_rows[None, :] if EVEN_K else in_rows[None, :] & (inner < k)[:, None]
        values_x = tl.load(x_rows + inner[:, None], mask=inside, other=0.0)
        zero = no_zero
        if ZERO:
            group_of_zero = begin // GROUP if GROUP else 0
            zero = tl.load(zero_point + of_scales + group_of_zero, mask=in_columns, other=0).to(tl.int8)[:, None]
        if PACKED:
            half = begin // 2 + tl.arange(0, BLOCK_K // 2)
            within = in_columns[:, None] if EVEN_K else in_columns[:, None] & (half < stored_k)[None, :]
            stored = tl.load(weight_rows + half[None, :], mask=within, other=0)
            values = tl.interleave(
                decode(stored & 0xF, zero, CODES, decoded), decode(stored >> 4, zero, CODES, decoded)
            )
        else:
            within = in_columns[:, None] if EVEN_K else in_columns[:, None] & (inner < k)[None, :]
            values = decode(tl.load(weight_rows + inner[None, :], mask=within, other=0), zero, CODES, decoded)
        if PLACE == "weight":
            count: tl.constexpr = BLOCK_K // GROUP
            group = begin // GROUP + tl.arange(0, count)
            held = in_columns[:, None] & (group < groups)[None, :]
            factors = decode_scale(tl.load(scale + of_scales[:, None] + group[None, :], mask=held, other=0), SCALE)
            wide = tl.broadcast_to(factors.to(values_x.dtype)[:, :, None], (BLOCK_N, count, GROUP))
            values = values.to(values_x.dtype) * tl.reshape(wide, (BLOCK_N, BLOCK_K))
        values = values.to(values_x.dtype)
        if PLACE == "sum":
            factor = decode_scale(tl.load(scale + of_scales + begin // GROUP, mask=in_columns, other=0), SCALE)
            sums += tl.dot(values, values_x, input_precision="ieee") * factor[:, None]
        else:
            sums = tl.dot(values, values_x, sums, input_precision="ieee")
    if PLACE == "row":
        sums *= decode_scale(tl.load(scale + of_scales, mask=in_columns, other=0), SCALE)[:, None]
    target = y + rows.to(tl.int64)[None, :] * n + columns[:, None]
    if PARTIAL:
        target += tl.program_id(1).to(tl.int64) * m * n
    else:
        sums = finish(sums, global_scale, bias, columns[:, None], in_columns[:, None], OUTER, BIAS)
    tl.store(target, sums.to(y.dtype.element_ty), mask=in_rows[None, :] & in_columns[:, None])


@triton.jit
def add_up(
    partial, global_scale, bias, y, m, n, parts,
    OUTER: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y [M, N] of the sums float32 [parts, M, N] that `multiply` stored, added in the order of K."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    sums = tl.zeros((BLOCK,), tl.float32)
    for index in range(parts):
        sums += tl.load(partial + (index * m + row) * n + columns, mask=inside, other=0.0)
    sums = finish(sums, global_scale, bias, columns, inside, OUTER, BIAS)
    tl.store(y + row * n + columns, sums.to(y.dtype.element_ty), mask=inside)


@triton.jit
def finish(sums, global_scale, bias, columns, inside, OUTER: tl.constexpr, BIAS: tl.constexpr):
    """Sums under the global scale, bias added."""
    if OUTER == "divide":
        sums = sums / tl.load(global_scale)
    if OUTER == "multiply":
        sums = sums * tl.load(global_scale)
    if BIAS:
        sums += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    return sums
