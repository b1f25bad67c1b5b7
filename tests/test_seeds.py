"""What the first three systems demand and no other file tests: switches, flavours, layouts at the call, and parts."""

from __future__ import annotations

from collections.abc import Callable

import paper_aiter
import pytest
import torch
from bindable import ALL
from float64_layers import INPUT_SCALE, SEEDS, example, random_x
from paper_aiter import PaperAiter

import qscheme
from qscheme import Facts, InvalidLayer
from qscheme.layouts import unswizzle_e8m0_32x8

N, K = 128, 256

Install = Callable[..., PaperAiter]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a release of AITER on paper in place."""
    return lambda *release: paper_aiter.install(monkeypatch, *release)


# --- selection -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["aiter", "aiter_linear"])
def test_one_condition_holds_for_every_backend_of_aiter(switch: str) -> None:
    of_aiter = [case for case in ALL if case.backend.startswith("aiter")]
    assert set(SEEDS) <= {case.scheme for case in of_aiter}
    arches = {case.facts.arch for case in of_aiter}
    off = {arch: Facts.simulate(arch, tuned="all", switches={switch: False}) for arch in arches}
    for case in of_aiter:
        refused = case._replace(facts=off[case.facts.arch]).decision.refused
        needs = [reason.needs for refusal in refused if refusal.backend == case.backend for reason in refusal.reasons]
        assert any(need.startswith(f"switch {switch} on (") for need in needs), case[:2]


def test_the_rdna4_chip_without_configurations_gets_no_kernel_of_aiter() -> None:
    layer = example("fp8_block128", N, K).layer
    chosen = {arch: qscheme.explain(layer, Facts.simulate(arch, tuned="all")).chosen for arch in ("gfx1200", "gfx1201")}
    assert {"gfx1200": "reference", "gfx1201": "aiter_triton_rdna4_one_split"} == chosen


# --- FP8 blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "fp8"), [("gfx942", torch.float8_e4m3fnuz), ("gfx950", torch.float8_e4m3fn)])
def test_both_operands_of_a_block_product_have_the_flavour_of_the_device(
    arch: str, fp8: torch.dtype, install: Install
) -> None:
    paper = install()
    qscheme.dispatch(example("fp8_block128", N, K).layer, Facts.simulate(arch), backend="aiter_ck")(random_x(3, K))
    (_, quantizer), (_, gemm) = paper.calls
    assert (fp8, fp8, fp8) == (quantizer["quant_dtype"], gemm["XQ"].dtype, gemm["WQ"].dtype)


@pytest.mark.parametrize("stored", ["fp32", "e8m0"])
def test_a_fnuz_device_gets_the_byte_of_zero_and_twice_the_scale(stored: str, install: Install) -> None:
    paper = install()
    layer = example("fp8_block128", N, K).layer
    layer.weight[0, :2] = torch.tensor([-0.0, 2.0]).to(torch.float8_e4m3fn)
    layer.weight_scale = (
        torch.tensor([[0.5, 4.0]]) if stored == "fp32" else torch.tensor([[126, 129]], dtype=torch.uint8)
    )
    qscheme.dispatch(layer, Facts.simulate("gfx942"), backend="aiter_ck")(random_x(3, K))
    _, gemm = paper.calls[-1]
    assert [0x00, 0x40] == gemm["WQ"].view(torch.uint8)[0, :2].tolist()
    assert ([[1.0, 8.0]], torch.float32) == (gemm["w_scale"].tolist(), gemm["w_scale"].dtype)


@pytest.mark.parametrize(("arch", "times"), [("gfx942", 2.0), ("gfx950", 1.0)])
def test_a_static_fp8_scale_is_doubled_where_codes_have_half_the_value(
    arch: str, times: float, install: Install
) -> None:
    paper = install()
    layer = example("fp8_tensor_static", N, K).layer
    for backend in ("aiter_ck", "aiter_triton"):
        qscheme.dispatch(layer, Facts.simulate(arch), backend=backend)(random_x(3, K))
        _, gemm = paper.calls[-1]
        assert [times * float(layer.input_scale)] * 3 == gemm["x_scale"].flatten().tolist()
    scales = [given["scale"] for name, given in paper.calls if name == "per_tensor_quant_hip"]
    assert [[times * float(layer.input_scale)]] == [scale.tolist() for scale in scales]


def test_a_weight_with_padded_rows_is_read_by_its_values(install: Install) -> None:
    paper = install()
    layer, facts = example("fp8_block128", N, K).layer, Facts.simulate("gfx950")
    x = random_x(3, K)
    expected = qscheme.dispatch(layer, facts, backend="aiter_ck")(x)
    padded = torch.zeros(N, K + 256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    padded[:, :K] = layer.weight
    layer.weight = padded[:, :K]
    assert torch.equal(expected, qscheme.dispatch(layer, facts, backend="aiter_ck")(x))
    assert paper.calls[-1][1]["WQ"].is_contiguous()


def test_parts_of_a_fused_layer_must_begin_a_tile() -> None:
    for widths in ([256, 192], [128, 128, 100], [300]):
        layer = example("fp8_block128", sum(widths), 256, logical_widths=widths).layer
        assert "reference" == qscheme.dispatch(layer, Facts.simulate("cpu")).backend
    for widths, begin in (([192, 256], 192), ([128, 100, 128], 228)):
        layer = example("fp8_block128", sum(widths), 256, logical_widths=widths).layer
        with pytest.raises(InvalidLayer, match=f"parts that begin at multiples of 128, .*found one at {begin}"):
            qscheme.dispatch(layer, Facts.simulate("cpu"))
    rows = example("mxfp4", 96, 256, logical_widths=[33, 63]).layer
    assert "reference" == qscheme.dispatch(rows, Facts.simulate("cpu")).backend


# --- INT8 ----------------------------------------------------------------------------------------------------------


def test_values_beyond_a_static_scale_saturate_before_they_reach_aiter(install: Install) -> None:
    paper = install()
    layer = example("int8_tensor_static", N, K).layer
    x = torch.full((3, K), 130 * INPUT_SCALE, dtype=torch.bfloat16)
    x[:, ::2] *= -1
    qscheme.dispatch(layer, Facts.simulate("gfx942"), backend="aiter_ck")(x)
    ((name, given),) = paper.calls
    assert ("gemm_a8w8_CK", {-127, 127}) == (name, set(given["XQ"].unique().tolist()))


@pytest.mark.parametrize("scheme", ["int8_ptpc", "int8_tensor_static"])
def test_the_int8_product_gets_a_scale_for_each_row_and_each_channel(scheme: str, install: Install) -> None:
    paper = install()
    layer = example(scheme, N, K, bias=torch.float32).layer
    y = qscheme.dispatch(layer, Facts.simulate("gfx942"), backend="aiter_ck")(random_x(5, K))
    _, given = paper.calls[-1]
    assert ((5, 1), (N, 1)) == (given["x_scale"].shape, given["w_scale"].shape)
    assert ((5, K), (N, K)) == (given["XQ"].shape, given["WQ"].shape)
    assert (None, torch.bfloat16) == (given.get("bias"), y.dtype)


def test_zero_points_beside_a_symmetric_layer_are_not_read() -> None:
    plain = example("int8_ptpc", N, K).layer
    pointed = example("int8_ptpc", N, K, weight_zero_point=torch.zeros(N, 1), input_zero_point=torch.zeros(1)).layer
    x, facts = random_x(3, K), Facts.simulate("cpu")
    assert torch.equal(qscheme.dispatch(plain, facts)(x), qscheme.dispatch(pointed, facts)(x))


# --- MXFP4 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "shape"), [(3, (3, K // 32)), (31, (31, K // 32)), (32, (8, K)), (64, (8, K))])
def test_the_preshuffled_product_gets_its_operands_folded(rows: int, shape: tuple[int, int], install: Install) -> None:
    paper = install()
    layer = example("mxfp4", N, K).layer
    qscheme.dispatch(layer, Facts.simulate("gfx950", tuned="all"), backend="aiter_asm")(random_x(rows, K))
    _, given = paper.calls[-1]
    x, weight = list(given.values())[:2]
    assert ((rows, K // 2), (N // 16, 16 * K // 2)) == (x.shape, weight.shape)
    assert (shape, (N // 32, K)) == (given["x_scales"].shape, given["w_scales"].shape)
    operands = (x, weight, given["x_scales"], given["w_scales"])
    assert [torch.uint8] * 4 == [operand.dtype for operand in operands]


def test_the_scales_of_the_weight_are_swizzled_for_assembly_and_columns_for_triton(install: Install) -> None:
    paper = install()
    layer, facts = example("mxfp4", N, K).layer, Facts.simulate("gfx950", tuned="all")
    qscheme.dispatch(layer, facts, backend="aiter_asm")(random_x(65, K))
    swizzled = paper.calls[-1][1]["B_scale"].view(torch.uint8)
    assert torch.equal(layer.weight_scale, unswizzle_e8m0_32x8(swizzled, N, K // 32))
    qscheme.dispatch(layer, facts, backend="aiter_triton")(random_x(65, K))
    given = paper.calls[-1][1]
    assert torch.equal(layer.weight_scale, given["w_scales"])
    assert (1, N) == given["w_scales"].stride()
    assert torch.equal(layer.weight, given["w"])


def test_no_rows_of_padding_are_left_in_the_result(install: Install) -> None:
    for release in ("0.1.8", "0.1.20"):
        install(f"v{release}")
        facts = Facts.simulate("gfx950", aiter=release, tuned="all")
        bound = qscheme.dispatch(example("mxfp4", N, K).layer, facts, backend="aiter_asm")
        assert [(rows, N) for rows in (1, 33, 65)] == [tuple(bound(random_x(rows, K)).shape) for rows in (1, 33, 65)]
