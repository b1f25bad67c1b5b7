"""Record what other packages make of a few hundred values: `python record.py NAME [SOURCE]` writes NAME.json beside it.

The packages are too heavy to be installed for the tests: each needs an environment of its own. SOURCE is an unpacked
source folder, for the two packages whose files are loaded one by one. A recording is made once for one release.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import types
from pathlib import Path

import torch

HERE = Path(__file__).parent


def to_json(tensor):
    tensor = tensor.detach().contiguous()
    plain = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "hex": plain.hex()}


def magnitudes():
    """Magnitudes float32 [~100] about every threshold of the exponent rules, and some others."""
    significands = torch.tensor([1.0, 1.25, 1.4142135, 1.5, 1.75, 1.875, 1.9375])
    powers = torch.exp2(torch.tensor([-20.0, -3.0, 0.0, 2.0, 8.0]))
    centres = (significands[:, None] * powers).reshape(-1)
    up, down = (torch.nextafter(centres, torch.full_like(centres, to)) for to in (torch.inf, 0.0))
    return torch.cat((centres, up, down, torch.exp2(torch.rand(25) * 60 - 30)))


def matrix():
    """x float32 [6, 64]: four random rows, a row of ties under the scale 1, a row of tiny values and zeros."""
    x = torch.randn(6, 64) * torch.tensor([0.01, 1.0, 37.0, 1000.0, 1.0, 1e-6])[:, None]
    x[4] = (torch.arange(64) % 32 - 16) * 0.125
    x[4, ::32] = 6.0
    x[5, 32:] = 0.0
    return x


def compressed_tensors(_source):
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.compressors.mxfp6.helpers import pack_fp6_to_uint8
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
    from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

    def both(x, args, size, global_scale=None):
        groups = x.reshape(x.shape[0], -1, size)
        scale, zero_point = calculate_qparams(groups.amin(2), groups.amax(2), args, global_scale)
        given = None if args.symmetric else zero_point
        return scale, zero_point, quantize(x, scale, given, args, global_scale=global_scale)

    x, amax = matrix(), magnitudes()
    cases = {
        f"exponents_{bits}": {"amax": amax, "byte": generate_mx_scales(amax, bits).to(torch.uint8)}
        for bits in (4, 6, 8)
    }
    packers = {
        4: pack_fp4_to_uint8,
        6: pack_fp6_to_uint8,
        8: lambda values: values.to(torch.float8_e4m3fn).view(torch.uint8),
    }
    for bits, pack in packers.items():
        args = QuantizationArgs(
            num_bits=bits, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8
        )
        rows = x[:5]
        scale, _, values = both(rows, args, 32)
        cases[f"mxfp{bits}"] = {
            "x": rows,
            "scale": compress_mx_scale(scale, torch.uint8),
            "codes": pack(values),
        }
    outer = generate_gparam(x.amin(), x.amax())
    args = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        symmetric=True,
        scale_dtype=torch.float8_e4m3fn,
    )
    scale, _, values = both(x, args, 16, outer)
    stored = scale.to(torch.float8_e4m3fn).view(torch.uint8)
    cases["nvfp4"] = {"x": x, "global_scale": outer, "scale": stored, "codes": pack_fp4_to_uint8(values)}
    zeros = torch.zeros(2)
    cases["nvfp4_zeros"] = {"global_scale": generate_gparam(zeros.amin(), zeros.amax())}
    for name, bits, size, symmetric in (
        ("int8_row", 8, 64, True),
        ("int8_row_asymmetric", 8, 64, False),
        ("int4_group", 4, 32, True),
        ("int4_group_asymmetric", 4, 32, False),
    ):
        spread = {"strategy": "channel"} if size == 64 else {"strategy": "group", "group_size": size}
        args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, **spread)
        rows = torch.cat((x[:5] + (0.0 if symmetric else 0.3), x[:3]))
        scale, zero_point, values = both(rows, args, size)
        codes = values.to(torch.int8)
        case = {"x": rows, "scale": scale, "zero_point": zero_point.to(torch.int8), "codes": codes}
        if bits == 4:
            case["packed"] = pack_to_int32(codes, 4)
            case["packed_zero_point"] = pack_to_int32(case["zero_point"], 4, packed_dim=0)
        cases[name] = case
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True)
    scale, _, values = both(x, args, 64)
    cases["fp8_row"] = {"x": x, "scale": scale, "codes": values.to(torch.float8_e4m3fn).view(torch.uint8)}
    return "compressed-tensors", importlib.metadata.version("compressed-tensors"), cases


def quark(_source):
    from quark.torch.kernel.float8_e5m3.reference import (
        reference_convert_fp32_to_e5m3_bits,
        reference_dequantize_float8_e5m3,
    )
    from quark.torch.quantization.utils import even_round
    from quark.torch.utils.pack import Pack_4_bits, Pack_fp6

    amax = magnitudes()
    cases = {}
    for name in ("fp4", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3"):
        exponent = torch.log2(even_round(amax.clone(), name))
        cases[f"even_{name}"] = {"amax": amax, "byte": (exponent + 127).to(torch.uint8)}
    scales = torch.exp2(torch.rand(120) * 30 - 16)
    ties = torch.exp2(torch.arange(-15.0, 15.0)) * (1 + torch.arange(30) % 8 / 8 + 1 / 16)
    scales = torch.cat((scales, ties)).clamp(max=114688.0)
    bytes_ = torch.arange(256).to(torch.uint8)
    cases["e5m3"] = {
        "scales": scales,
        "bytes": reference_convert_fp32_to_e5m3_bits(scales),
        "values": reference_dequantize_float8_e5m3(bytes_),
    }
    magnitude = torch.cat(
        (torch.arange(4) / 16, torch.exp2(torch.arange(-2.0, 5.0)).outer(1 + torch.arange(4) / 4).reshape(-1))
    )
    values = torch.cat((magnitude, -magnitude))[torch.randperm(64)].reshape(2, 32)
    packed = Pack_fp6("per_group", "fp6_e3m2", 3, 2).pack(values.clone(), True)
    cases["fp6_e3m2"] = {"values": values, "packed": packed}
    codes = torch.randint(-8, 8, (24, 16), dtype=torch.int8)
    packed = Pack_4_bits("per_group", "int4").pack(codes.to(torch.int32), True)
    cases["int4_reordered"] = {"codes": codes, "packed": packed}
    return "amd-quark", importlib.metadata.version("amd-quark"), cases


def modelopt(_source):
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    x = matrix()
    stored, scale, outer = NVFP4QTensor.quantize(x.clone(), 16)
    codes = stored._quantized_data
    case = {"x": x, "global_scale": outer.reshape(1), "scale": scale.view(torch.uint8), "codes": codes}
    return "nvidia-modelopt", importlib.metadata.version("nvidia-modelopt"), {"nvfp4": case}


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def amd_aiter(source):
    root = Path(source) / "aiter" / "utility"
    package, dtypes, core = (types.ModuleType(name) for name in ("a.u", "a.u.dtypes", "a.jit.core"))
    package.__path__ = []
    dtypes.fp8_e8m0, dtypes.fp4x2, dtypes.fp32 = torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.float32
    package.dtypes = dtypes
    core.compile_ops = lambda *_arguments: lambda function: function
    jit, top = types.ModuleType("a.jit"), types.ModuleType("a")
    top.__path__, jit.__path__ = [], []
    sys.modules.update({"a": top, "a.u": package, "a.u.dtypes": dtypes, "a.jit": jit, "a.jit.core": core})
    words = load("a.u.mx_types", root / "mx_types.py")
    rules = load("a.u.fp4_utils", root / "fp4_utils.py")
    amax = magnitudes()
    cases = {}
    modes = words.MxScaleRoundModeInt
    for rule, mode in (
        ("floor", modes.RoundDown),
        ("rceil", modes.RoundUp),
        ("even", modes.Even),
        ("ceil", modes.Ceil),
    ):
        for element in ("FP4_E2M1", "FP8_E4M3", "FP8_E4M3_FNUZ"):
            scale = rules.f32_to_mx_e8m0_scale(amax, mode=mode, dtype=getattr(words.MxDtypeInt, element))
            cases[f"{rule}_{element.lower()}"] = {"amax": amax, "byte": scale.view(torch.uint8)}
    cases["default"] = {"amax": amax, "byte": rules.fp4_f32_to_e8m0_scale(amax).view(torch.uint8)}
    return "amd-aiter", "0.1.20.post1", cases


def autoawq(source):
    packing = load("awq_packing", Path(source) / "awq" / "utils" / "packing_utils.py")
    words = torch.randint(-(2**31), 2**31, (16, 3), dtype=torch.int64).to(torch.int32)
    zero_words = torch.randint(-(2**31), 2**31, (2, 3), dtype=torch.int64).to(torch.int32)
    codes, zero_points = packing.reverse_awq_order(*packing.unpack_awq(words, zero_words, 4), 4)
    scales = torch.rand(2, 24)
    case = {
        "packed": words,
        "packed_zero_point": zero_words,
        "codes": codes & 15,
        "zero_point": zero_points & 15,
        "scales": scales,
        "weight": packing.dequantize_gemm(words, zero_words, scales, 4, 8),
    }
    return "autoawq", "0.2.9", {"gemm": case}


def main(name, source=None):
    torch.manual_seed(0)
    package, version, cases = globals()[name](source)
    stored = {
        "package": package,
        "version": version,
        "cases": {case: {key: to_json(value) for key, value in fields.items()} for case, fields in cases.items()},
    }
    (HERE / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
