"""torch.compile takes every bound function whole, once for each range of M, and its custom ops tell the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import bindable
import paper_aiter
import pytest
import torch
from float64_layers import KINDS, codes_for, example, random_x
from paper_aiter import PaperAiter
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import qscheme
from qscheme import Facts
from qscheme.binding import Bound
from qscheme.tables import load
from qscheme.types import BATCH_INVARIANT

N, K = 128, 256
Install = Callable[..., PaperAiter]
Case = tuple[str, str, Facts, bool]


def cases() -> list[Case]:
    """Every scheme and backend that this process can call, in every mode that changes its calls, on some machine."""
    found: dict[object, Case] = {}
    for invariant in (False, True):
        switches = {name: name != BATCH_INVARIANT or invariant for name in load().switches}
        facts = [Facts.simulate(arch, tuned="all", switches=switches) for arch in load().devices]
        cpu = [known for known in facts if known.arch == "cpu"]
        for scheme in KINDS:
            layer = example(scheme, N, K).layer
            for backend in load().scheme(scheme).backends:
                for known in facts if backend.name.startswith("aiter") else cpu:
                    decision = qscheme.explain(layer, known, backend=backend.name)
                    if decision.chosen:
                        gemms = tuple(call.gemm for call in decision.calls)
                        found.setdefault((scheme, backend.name, gemms), (scheme, backend.name, known, invariant))
    return list(found.values())


EVERY = cases()
OPAQUE = [case for case in EVERY if case[1].startswith("aiter")]
LARGER = [
    case
    for case in bindable.ALL
    if case.scheme in KINDS and case.backend.startswith("aiter") and case[:2] not in {known[:2] for known in OPAQUE}
]
SOME = [
    case
    for case in EVERY
    if case[:2] in {("int8_ptpc", "torch_int_mm"), ("int8_ptpc", "aiter_ck"), ("mxfp4", "aiter_asm")}
    or case[:2] in {("fp8_block128", "reference"), ("fp8_block128", "aiter_ck_preshuffle"), ("mxfp4", "reference")}
]


def named(case: object) -> str | None:
    return "-".join(case[:2]) + "-invariant" * case[3] if isinstance(case, tuple) else None


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts AITER on paper in place."""
    return lambda *release, **changed: paper_aiter.install(monkeypatch, *release, **changed)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def bind(case: Case, **options: Any) -> Bound:
    facts = replace(case[2])  # what was loaded for other facts is not used again
    return qscheme.dispatch(example(case[0], N, K, **options).layer, facts, backend=case[1])


def rows_of(bound: Bound) -> list[tuple[int, ...]]:
    """Numbers of rows from 2 on, in one group for each branch that the bound function may take."""
    if bound.backend == "torch_int_mm":
        return [(2, 16), (17, 200)]
    if len(bound.decision.calls) > 1:
        return [(2, 31), (32, 64), (65, 200)]
    return [(2, 32, 65, 200)]


def dynamic(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.mark_dynamic(x, 0)
    return x


class Recorder(TorchDispatchMode):
    """The custom ops of qscheme that are called, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "qscheme":
            self.seen.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", EVERY, ids=named)
def test_a_bound_function_is_one_graph_for_each_range_of_m(case: Case, install: Install) -> None:
    install()
    bound = bind(case, bias=torch.bfloat16)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(bound, fullgraph=True, backend=counter)
    for graphs, every in enumerate(rows_of(bound), start=1):
        for rows in every:
            x = random_x(rows, K, seed=rows)
            assert torch.equal(bound(x), compiled(dynamic(x.clone())))
        assert graphs == counter.frame_count, every


@pytest.mark.parametrize("case", SOME, ids=named)
def test_it_may_be_part_of_a_larger_function_of_any_rank(case: Case, install: Install) -> None:
    install()
    bound = bind(case)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(bound(x * 2)) + 1

    x = random_x(2, 3, K)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=False)
    assert torch.equal(block(x), compiled(x))
    assert torch.equal(block(x.transpose(0, 1)), compiled(x.transpose(0, 1)))
    assert (0, N) == compiled(x[0, :0]).shape


@pytest.mark.parametrize("case", SOME, ids=named)
def test_codes_and_scales_are_one_graph_too(case: Case, install: Install) -> None:
    install()
    bound = bind(case)
    codes, scale = codes_for(bound, 5)
    compiled = torch.compile(bound, fullgraph=True, backend="eager")
    assert torch.equal(bound(codes, x_scale=scale), compiled(codes, x_scale=scale))


@pytest.mark.parametrize("case", [case for case in EVERY if case[0] == "mxfp4"], ids=named)
def test_a_rotated_layer_is_one_graph(case: Case, install: Install) -> None:
    install()
    bound = bind(case, rotation=32)
    x = random_x(5, K)
    assert torch.equal(bound(x), torch.compile(bound, fullgraph=True, backend="aot_eager")(x))


@pytest.mark.parametrize("case", OPAQUE, ids=named)
def test_eager_calls_take_no_custom_op_and_compiled_ones_take_one_for_each_kernel(case: Case, install: Install) -> None:
    paper = install()
    bound = bind(case)
    for rows in (3, 40, 80):
        x = random_x(rows, K)
        with Recorder() as eager:
            bound(x)
        assert [] == eager.seen
        paper.calls.clear()
        with Recorder() as compiled:
            bound._compiled(x)
        kernels = [name for name in paper.called if name != "_get_config"]
        assert len(kernels) == len(compiled.seen)


def checks(arguments: tuple[Any, ...]) -> tuple[str, ...]:
    """What opcheck can check: its check of the schema compares values, which FP8 and FP4 do not have on a CPU."""
    narrow = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float4_e2m1fn_x2)
    given = [value for value in arguments if isinstance(value, (torch.Tensor, torch.dtype))]
    dtypes = [value.dtype if isinstance(value, torch.Tensor) else value for value in given]
    packs = any(isinstance(value, bool) for value in arguments)  # the FP4 quantizer returns what it is told to
    return ("test_faketensor",) if packs or set(narrow) & set(dtypes) else ("test_faketensor", "test_schema")


@pytest.mark.parametrize("case", OPAQUE, ids=named)
def test_the_fakes_of_custom_ops_agree_with_what_the_kernels_return(case: Case, install: Install) -> None:
    install()
    check_fakes(bind(case, bias=torch.bfloat16))


@pytest.mark.parametrize("case", LARGER, ids=bindable.named)
def test_the_fakes_of_kernels_that_take_larger_layers_alone_agree_too(case: bindable.Case, install: Install) -> None:
    install()
    layer = example(case.scheme, case.n, case.k, bias=torch.bfloat16, out_dtype=case.out_dtype).layer
    check_fakes(qscheme.dispatch(layer, replace(case.facts), backend=case.backend))


def check_fakes(bound: Bound) -> None:
    for rows in (3, 40, 80):
        with Recorder() as recorder:
            bound._compiled(random_x(rows, bound.k))
            if bound.activation is not None:
                bound._compiled_quantized(*codes_for(bound, rows))
        assert recorder.seen
        for op, arguments, keywords in recorder.seen:
            torch.library.opcheck(op, arguments, keywords, test_utils=checks(arguments))


@pytest.mark.parametrize("release", paper_aiter.telling_releases()[3:])
def test_custom_ops_call_every_release_as_eager_code_does(release: str, install: Install) -> None:
    paper = install(release)
    for arch in ("gfx942", "gfx950"):
        facts = Facts.simulate(arch, aiter=release, tuned="all")
        for scheme in load().schemes:
            bound = qscheme.dispatch(example(scheme, N, K).layer, facts)
            if not bound.backend.startswith("aiter"):
                continue
            x = random_x(80, K)
            paper.calls.clear()
            y = bound(x)
            eager = [(name, sorted(given)) for name, given in paper.calls]
            paper.calls.clear()
            assert torch.equal(y, bound._compiled(x))
            assert eager == [(name, sorted(given)) for name, given in paper.calls]


def test_two_builds_of_a_library_have_ops_of_their_own(install: Install) -> None:
    layer, x = example("int8_ptpc", N, K).layer, random_x(3, K)
    bounds = []
    for _ in range(2):
        paper = install()
        bound = qscheme.dispatch(layer, Facts.simulate("gfx942"))
        bound._compiled(x)
        bounds.append((bound, paper))
    (first, older), (second, newer) = bounds
    older.calls.clear()
    newer.calls.clear()
    first._compiled(x)
    assert (2, 0) == (len(older.calls), len(newer.calls))
    second._compiled(x)
    assert (2, 2) == (len(older.calls), len(newer.calls))


def test_a_library_that_is_loaded_once_has_its_ops_registered_once(install: Install) -> None:
    install()
    layer = example("int8_ptpc", N, K).layer
    names = []
    for facts in (Facts.simulate("gfx942"), Facts.simulate("gfx942"), Facts.simulate("gfx950")):
        with Recorder() as recorder:
            qscheme.dispatch(layer, facts, backend="aiter_ck")._compiled(random_x(3, K))
        names.append([str(op) for op, _, _ in recorder.seen])
    assert names[0] == names[1] == names[2]


def test_an_op_does_not_return_what_it_was_given() -> None:
    from qscheme.ops import opaque

    def kernel(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, scale.view(1)

    def fake(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), scale.new_empty(1)

    op = opaque("test_returns_its_scale", "(Tensor x, Tensor scale) -> (Tensor, Tensor)", kernel, fake)
    x, scale = torch.ones(3), torch.tensor(2.0)
    with Recorder() as recorder:
        _, returned = op(x, scale)
    assert torch.equal(torch.tensor([2.0]), returned)
    assert scale.data_ptr() != returned.data_ptr()
    for found, arguments, keywords in recorder.seen:
        torch.library.opcheck(found, arguments, keywords)


def test_a_module_that_is_bound_is_one_graph() -> None:
    layer = torch.nn.Linear(K, N, dtype=torch.bfloat16)
    module = qscheme.quantize(layer, "int8_ptpc")
    module.bind(Facts.simulate("cpu"))
    x = random_x(5, K)
    assert torch.equal(module(x), torch.compile(module, fullgraph=True, backend="aot_eager")(x))


@pytest.mark.parametrize("scheme", ["int8_ptpc", "mxfp4"])
def test_a_module_that_is_not_bound_yet_binds_itself_while_it_is_traced(scheme: str) -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        qscheme.quantize(torch.nn.Linear(K, N, dtype=torch.bfloat16), scheme),
        torch.nn.ReLU(),
        qscheme.quantize(torch.nn.Linear(N, 24, dtype=torch.bfloat16), scheme),
    )
    x = torch.randn(5, K, dtype=torch.bfloat16)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(x), model(x))
