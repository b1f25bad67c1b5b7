"""A kernel of a YAML file -> a kernel of the catalogue, and every problem that its file alone shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from packaging.version import Version

from qscheme.compiler import ir
from qscheme.compiler.generated_names import TAKEN
from qscheme.compiler.kernel_model import GemmModel, OlderGemm
from qscheme.compiler.kernel_problems import gemm_problems, quantizer_problems
from qscheme.compiler.parameters import class_name
from qscheme.compiler.prepare_text import SCALE_STEPS, WEIGHT_STEPS, X_STEPS
from qscheme.compiler.versions import known_bad_of, ranges_of
from qscheme.types import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qscheme.compiler import model
    from qscheme.compiler.folder import File
    from qscheme.compiler.kernel_model import (
        Imported,
        KernelFile,
        OlderQuantizer,
        OperandModel,
        Out,
        QuantizerModel,
        Quantizes,
        TunedTableModel,
    )
    from qscheme.compiler.source import Place

    Report: TypeAlias = Callable[[Place, str], None]
    Anyone: TypeAlias = QuantizerModel | GemmModel

VIEW = re.compile(r"(weight|weight_scale)_(fp4x2|e8m0|by_\d+)(_by_\d+)?")
"""The names of weights under another view in generated modules."""

PARAMETERS = frozenset(("self", "torch", "scale_shape", "swizzled_shape", "changed_config"))
"""Names that generated functions need beside the parameters of a kernel."""

OWN = "qscheme.kernels."
"""Where kernels of qscheme's own stand, whatever library they are written in."""

SCALES = ("x_scale", "weight_scale")
LAYOUTS_OF: dict[str, tuple[str, ...]] = {
    "x": ("row_major", *X_STEPS),
    "weight": tuple(WEIGHT_STEPS),
    **dict.fromkeys(SCALES, tuple(SCALE_STEPS)),
}
"""The layouts that a step makes, for the operands that have any but row_major."""


def resolve_kernel(name: str, kernel: Anyone, file: File[KernelFile], report: Report) -> ir.Kernel:
    """The kernel as the catalogue has it; every problem is reported."""
    path = ("kernels", name)
    for inner, message in _problems(name, kernel, file):
        report(file.place(*path, *inner) if inner else file.key_place(*path), message)
    gemm = kernel if isinstance(kernel, GemmModel) else None
    quantizer = kernel if not isinstance(kernel, GemmModel) else None
    scale = quantizer.scale if quantizer else None
    config = gemm.config if gemm else None
    output = gemm.output if gemm and isinstance(gemm.output, tuple) else ("bf16", "fp16", "fp32")
    return ir.Kernel(
        name=name,
        library=file.stem,
        package=file.model.library,
        place=file.key_place(*path),
        does=kernel.does,
        symbols=_symbols(kernel),
        since=kernel.since,
        until=kernel.until,
        formats=kernel.formats,
        weight_formats=gemm.weight_formats if gemm else (),
        granularity=quantizer.granularity if quantizer else None,
        asymmetric=quantizer.asymmetric if quantizer else False,
        operands=tuple(_operand(role, use) for role, use in kernel.operands.items()),
        constants=tuple((key, _constant(value)) for key, value in kernel.constants.items()),
        config=ir.ConfigUse(config.as_, config.from_, tuple(config.set.items())) if config else None,
        rotate=quantizer.rotate if quantizer else None,
        inputs=kernel.inputs,
        codes=quantizer.codes if quantizer else None,
        scale_layout=scale.layout if scale else "row_major",
        scale_option=(scale.option.as_, scale.option.layout) if scale and scale.option else None,
        scale_dtype=scale.dtype if scale else None,
        rules=tuple((rule.since, rule_of(rule)) for rule in _rules(kernel)),
        minimum_rows=gemm.rows.minimum if gemm and gemm.rows else 1,
        multiple_rows=gemm.rows.multiple if gemm and gemm.rows else 1,
        padded_in=ranges_of(gemm.rows.versions) if gemm and gemm.rows else (),
        output=output,
        accumulators=gemm is not None and not isinstance(gemm.output, tuple),
        out=_out(gemm.out) if gemm else None,
        quantizes=_quantizes(gemm.quantizes) if gemm else None,
        global_scales_after=gemm is not None and gemm.global_scales == "after",
        fp8=gemm.fp8 if gemm else "device",
        batch_invariant=gemm.batch_invariant if gemm else True,
        older=tuple(_older(older, kernel) for older in _olders(kernel)),
        traceable=file.model.traceable and kernel.traceable is not False,
        known_bad=known_bad_of(name, kernel),
    )


def rule_of(rule: model.RuleModel) -> Rule:
    """The rule that a YAML mapping means."""
    return Rule(rule.scale, rule.max, rule.round, rule.apply, rule.floor, rule.fnuz_max)


def table_problems(table: TunedTableModel) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What is wrong with a tuned table, each with the key path in it."""
    for position, pattern in enumerate(table.files):
        holes = re.sub(r"\{(arch|product|n|k)\}", "", pattern)
        if table.kind == "json" and ("{" in holes or "}" in holes):
            yield ("files", position), "a JSON file's name may hold {arch}, {product}, {n} and {k}, and no other braces"
        if table.kind == "csv" and "{" in pattern:
            yield ("files", position), "a CSV file holds every shape; its name may hold * and no braces"
    if table.products and not any("{product}" in pattern for pattern in table.files):
        yield ("products",), "no file's name holds {product}"
    for key, stated in (("variable", bool(table.variable)), ("rows", bool(table.rows))):
        if stated and table.kind == "json":
            does = "an environment variable replaces" if key == "variable" else "columns are those of"
            yield (key,), f"{does} CSV files only"
    for word, stated, kind in (
        ("key", bool(table.key), "csv"),
        ("kernels", bool(table.kernels), "csv"),
        ("entries", table.entries is not None, "json"),
    ):
        if stated and table.kind != kind:
            yield (word,), f"belongs to a {kind.upper()} table"
    for position, kernel in enumerate(table.kernels):
        if kernel.name.count("{k}") > 1 or "{" in kernel.name.replace("{k}", ""):
            yield ("kernels", position, "name"), "may hold {k} once, and no other braces"


def _problems(name: str, kernel: Anyone, file: File[KernelFile]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every problem, with the key path in the kernel."""
    library = file.model.library
    if name in TAKEN or VIEW.fullmatch(name):
        yield (), f"the generated code uses the name {name!r} itself; choose another"
    twin = next(other for other in file.model.kernels if class_name(other) == class_name(name))
    if twin != name:
        yield (), f"its name differs from {twin!r} in underscores alone; choose another"
    for path, symbol in _named_symbols(kernel):
        if not symbol.startswith((f"{library}.", OWN)):
            yield path, f"the symbol {symbol} is not in the library {library!r} of this file"
    if kernel.since and kernel.until and Version(kernel.until) < Version(kernel.since):
        yield ("until",), f"{kernel.until} is older than since, {kernel.since}"
    if kernel.traceable and not file.model.traceable:
        yield ("traceable",), "true says nothing of a kernel whose library is not traceable"
    yield from _constant_problems(kernel)
    yield from _parameter_problems(kernel)
    for role, use in kernel.operands.items():
        yield from ((("operands", role, *path), message) for path, message in _operand_problems(role, use))
    for position, older in enumerate(_olders(kernel)):
        yield from ((("older", position, *path), message) for path, message in _older_problems(older, kernel))
    if isinstance(kernel, GemmModel):
        yield from gemm_problems(kernel)
    else:
        yield from quantizer_problems(kernel, opaque=not file.model.traceable or kernel.traceable is False)


def _named_symbols(kernel: Anyone) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(kernel.symbol, str):
        yield ("symbol",), kernel.symbol
    else:
        yield from ((("symbol", position), symbol) for position, symbol in enumerate(kernel.symbol))
    if isinstance(kernel, GemmModel) and kernel.config:
        yield from ((("config", "from", position), symbol) for position, symbol in enumerate(kernel.config.from_))
    for row, older in enumerate(_olders(kernel)):
        yield from ((("older", row, "symbol", position), symbol) for position, symbol in enumerate(older.symbol))


def _constant_problems(kernel: Anyone) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for key, value in kernel.constants.items():
        constant = _constant(value)
        if isinstance(constant, ir.Imported) and not constant.name.startswith("torch."):
            yield ("constants", key, "import"), f"constants are imported from torch alone, found {constant.name}"


def _parameter_problems(kernel: Anyone) -> Iterator[tuple[tuple[str | int, ...], str]]:
    positions = sorted(use.position for use in kernel.operands.values() if use.position is not None)
    if positions != list(range(len(positions))):
        yield ("operands",), f"positions must be 0, 1, 2, ..., found {', '.join(map(str, positions))}"
    named: list[tuple[tuple[str | int, ...], str]] = []
    for role, use in kernel.operands.items():
        named.append((("operands", role), use.as_ or role))
    named += [(("constants", key), key) for key in kernel.constants]
    if isinstance(kernel, GemmModel):
        named += [(("config", "as"), kernel.config.as_)] if kernel.config else []
        named += [(("out", "as"), kernel.out.as_)] if kernel.out else []
    elif kernel.scale and kernel.scale.option:
        named.append((("scale", "option", "as"), kernel.scale.option.as_))
    for row, older in enumerate(_olders(kernel)):
        if isinstance(older, OlderGemm) and older.out:
            named.append((("older", row, "out", "as"), older.out.as_))
    seen: set[str] = set()
    for path, parameter in named:
        if parameter in seen:
            yield path, f"a second parameter that is called {parameter!r}"
        if parameter in PARAMETERS:
            yield path, f"the generated code cannot have a parameter called {parameter!r}; pass it by position"
        seen.add(parameter)


def _operand_problems(role: str, use: OperandModel) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if (use.as_ is None) == (use.position is None):
        yield (), "needs either `as` or `position`"
    scale, weight = role in SCALES, role == "weight"
    if isinstance(use.layout, str):
        if use.layout not in LAYOUTS_OF.get(role, ("row_major",)):
            message = f"{use.layout} is no layout of {role}" if role in LAYOUTS_OF else f"{role} is always row_major"
            yield ("layout",), message
    elif role != "x_scale":
        yield ("layout",), f"only the layout of x_scale may change with M, not that of {role}"
    else:
        ends = [row.max_m for row in use.layout]
        rising = [end for end in ends[:-1] if end is not None]
        if len(rising) != len(ends) - 1 or ends[-1] is not None or rising != sorted(set(rising)):
            yield ("layout",), "needs a rising max_m in every row but the last, which has none"
        if use.fold_rows is not None:
            yield ("fold_rows",), "belongs to the rows of layout"
    if use.fold_rows is not None and not (scale or weight):
        yield ("fold_rows",), f"only the weight and scales are folded, not {role}"
    for word, given in (("granularity", use.granularity), ("formats", use.formats)):
        if given and not scale:
            yield (word,), f"only scales have {'a granularity' if word == 'granularity' else 'formats'}, not {role}"
    if use.packing is not None and not weight:
        yield ("packing",), f"only the weight has a packing, not {role}"
    if use.applies is not None and not role.endswith("_global_scale"):
        yield ("applies",), f"only a global scale is applied, not {role}"
    if use.dtype in ("any", "fp32") and role != "bias":
        yield ("dtype",), f"only a bias may have {'any dtype' if use.dtype == 'any' else 'the dtype fp32'}, not {role}"
    elif use.dtype is not None and not (use.dtype in ("any", "fp32") if role == "bias" else role in LAYOUTS_OF):
        yield ("dtype",), f"{role} has no dtype to choose"
    if use.required and role != "bias":
        yield ("required",), f"only a bias is missing in some layers, not {role}"
    elif use.required and use.dtype == "any":
        yield ("required",), "zeros need a dtype: write fp32, or leave `dtype` out for that of the output"


def _older_problems(older: OlderQuantizer | OlderGemm, kernel: Anyone) -> Iterator[tuple[tuple[str | int, ...], str]]:
    keywords = [role for role, use in kernel.operands.items() if use.as_ is not None]
    for position, role in enumerate(older.without):
        if role not in keywords:
            yield ("without", position), f"{role} is no operand that this kernel takes by keyword"
    if isinstance(kernel, GemmModel) and kernel.config:
        yield (), "a kernel with a config has no older forms; describe the older one as a kernel of its own"


def _olders(kernel: Anyone) -> tuple[OlderQuantizer | OlderGemm, ...]:
    return kernel.older


def _symbols(kernel: Anyone) -> tuple[str, ...]:
    return (kernel.symbol,) if isinstance(kernel.symbol, str) else kernel.symbol


def _operand(role: str, use: OperandModel) -> ir.OperandUse:
    if isinstance(use.layout, str):
        layouts: tuple[ir.LayoutRange, ...] = (ir.LayoutRange(None, use.layout, use.fold_rows),)
    else:
        layouts = tuple(ir.LayoutRange(part.max_m, part.is_, part.fold_rows) for part in use.layout)
    return ir.OperandUse(
        role,
        use.as_,
        use.position,
        layouts,
        use.dtype,
        use.granularity,
        use.required is not None,
        use.formats,
        use.applies,
        tuple((form, word) for form, word in (use.packing or ()) if word),
    )


def _constant(value: bool | int | float | str | Imported) -> ir.Constant:
    return value if isinstance(value, bool | int | float | str) else ir.Imported(value.import_)


def _older(older: OlderQuantizer | OlderGemm, kernel: Anyone) -> ir.OlderForm:
    out = older.out or kernel.out if isinstance(older, OlderGemm) and isinstance(kernel, GemmModel) else None
    return ir.OlderForm(older.symbol or _symbols(kernel), older.without, _out(out))


def _out(out: Out | None) -> tuple[str, int] | None:
    return (out.as_, out.rows) if out else None


def _rules(kernel: Anyone) -> tuple[model.RuleModel, ...]:
    if isinstance(kernel, GemmModel):
        return kernel.quantizes.rules if kernel.quantizes else ()
    return kernel.rules


def _quantizes(says: Quantizes | None) -> ir.Quantizes | None:
    return ir.Quantizes(says.format, says.granularity, says.scale) if says else None
