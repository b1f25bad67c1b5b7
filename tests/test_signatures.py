"""What kernel libraries offer, found without importing them."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import itertools
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qscheme.errors import QschemeError, SchemeFileError
from qscheme.machine import Library
from qscheme.releases import History, read_history, release_tags, scan_history
from qscheme.scanning import VALUE, Package, ScanPlan, scan
from qscheme.signatures import ReleaseOffers, is_library, misfit
from qscheme.types import Form, Kernel, Reason

if TYPE_CHECKING:
    from qscheme.bindings import Parameters

RELEASES = Path(__file__).resolve().parent.parent / "schemes" / "releases"
AITER = read_history(RELEASES / "aiter.json")


def installed_aiter() -> Path:
    spec = importlib.util.find_spec("aiter")
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def kernel(*forms: Form, library: str = "aiter") -> Kernel:
    return Kernel(name=f"{library}.kernel", library=library, forms=forms, adapt=lambda form, loaded: print)


def form(symbol: str, positional: int, *keywords: str, since: str | None = None, until: str | None = None) -> Form:
    return Form((symbol,), positional, keywords, since, until)


A4W4 = kernel(
    form("aiter.gemm_a4w4", 4, "dtype"),
    form("aiter.gemm_a4w4", 4, "out"),
)
PRESHUFFLE = kernel(
    Form(
        (
            "aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle",
            "aiter.ops.triton.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle",
        ),
        2,
        ("x_scales", "w_scales", "dtype"),
    )
)


def at(version: str | None = None, location: Path | None = None) -> ReleaseOffers:
    return ReleaseOffers({"aiter": Library("aiter", version, str(location) if location else None)}, RELEASES)


def write(root: Path, files: dict[str, str]) -> Path:
    """A package folder `kernels` with these files."""
    for name, text in files.items():
        path = root / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root / "kernels"


def offers(package: Path, version: str | None = None) -> ReleaseOffers:
    history = History("kernels", ScanPlan(), (), {}, {})
    return ReleaseOffers({"kernels": Library("kernels", version, str(package))}, {"kernels": history})


# --- a call and a list of parameters ---------------------------------------------------------------------------------


def test_a_call_that_fits_has_no_misfit() -> None:
    assert misfit(("A", "B", "scale", "dtype=bf16"), form("k", 2, "scale")) is None


@pytest.mark.parametrize(
    ("parameters", "call", "expected"),
    [
        (("a", "b=None"), form("k", 1, "dtype"), "parameters (a, b=None) without dtype"),
        (("a", "b", "out"), form("k", 2), "parameters (a, b, out) with out required"),
        (("a", "b", "*", "out"), form("k", 2), "parameters (a, b, *, out) with out required"),
        (("a", "b"), form("k", 1, "a", "b"), "parameters (a, b) with a given twice"),
        (("a", "b"), form("k", 3), "parameters (a, b) with 2 by position, not 3"),
        (("a", "*", "b=0"), form("k", 2), "parameters (a, *, b=0) with 1 by position, not 2"),
        (("a", "/", "b=0"), form("k", 0, "a"), "parameters (a, /, b=0) without a and with a required"),
        (("a", "out"), form("k", 1, "dtype"), "parameters (a, out) without dtype and with out required"),
    ],
)
def test_a_misfit_says_what_is_wrong_with_the_call(parameters: Parameters, call: Form, expected: str) -> None:
    assert expected == misfit(parameters, call)


def test_star_parameters_take_what_has_no_other_place() -> None:
    assert misfit(("a", "*rest", "**options"), form("k", 5, "dtype")) is None


def test_a_value_is_no_function() -> None:
    assert misfit(VALUE, form("k", 0)) is None
    assert misfit(VALUE, form("k", 1)) == "a value that is no function"


def test_misfit_agrees_with_python_itself() -> None:
    headers = [
        "a",
        "a, b",
        "a, b=0",
        "a, /, b",
        "a, *, b",
        "a, *, b=0",
        "a, *rest",
        "a, **rest",
        "a, /, **rest",
        "*, a",
    ]
    for header in headers:
        signature = inspect.signature(eval(f"lambda {header}: 0"))
        parameters = tuple(header.split(", "))
        for positional, keywords in itertools.product(range(4), [(), ("a",), ("b",), ("a", "b"), ("c",)]):
            try:
                signature.bind(*range(positional), **dict.fromkeys(keywords))
                fits = True
            except TypeError:
                fits = False
            call = Form(("k",), positional, keywords)
            assert fits == (misfit(parameters, call) is None), (header, positional, keywords)


# --- reading a package -----------------------------------------------------------------------------------------------


def test_a_star_import_and_a_named_import_lead_to_the_definition(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {
            "__init__.py": "from .ops.gemm import *\nfrom .ops.quant import rows as quantize\n",
            "ops/gemm.py": "def gemm(x, w, *, out=None): ...\ndef _hidden(x): ...\n",
            "ops/quant.py": "def rows(x, scale=1.0): ...\n",
        },
    )
    found = Package(package)
    assert found.parameters("kernels.gemm") == ("x", "w", "*", "out=None")
    assert found.parameters("kernels.quantize") == ("x", "scale=1.0")
    assert found.parameters("kernels._hidden") is None
    assert found.parameters("kernels.ops.gemm._hidden") == ("x",)


def test_the_last_star_import_wins_as_in_python(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {
            "__init__.py": "from .first import *\nfrom .second import *\n",
            "first.py": "def k(a): ...\n",
            "second.py": "def k(b): ...\n",
        },
    )
    assert Package(package).parameters("kernels.k") == ("b",)


def test_all_limits_a_star_import(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {"__init__.py": "from .a import *\n", "a.py": "__all__ = ['shown']\ndef shown(x): ...\ndef kept(x): ...\n"},
    )
    assert Package(package).parameters("kernels.shown") == ("x",)
    assert Package(package).parameters("kernels.kept") is None


def test_decorators_do_not_hide_a_signature(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {"__init__.py": "@compile_ops('module', gen_fake=fake)\n@guard()\ndef k(XQ, WQ, Out, splitK=0): ...\n"},
    )
    assert Package(package).parameters("kernels.k") == ("XQ", "WQ", "Out", "splitK=0")


def test_a_fallback_counts_only_if_the_import_leads_nowhere(tmp_path: Path) -> None:
    text = "try:\n    from {} import k\nexcept ImportError:\n    def k(x, slow=True): ...\n"
    package = write(
        tmp_path,
        {
            "__init__.py": "",
            "a.py": text.format(".fast"),
            "b.py": text.format("elsewhere"),
            "fast.py": "def k(x): ...\n",
        },
    )
    assert Package(package).parameters("kernels.a.k") == ("x",)
    assert Package(package).parameters("kernels.b.k") == ("x", "slow=True")


def test_names_imported_for_types_alone_are_not_offered(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import k\n"
    package = write(tmp_path, {"__init__.py": text, "a.py": "def k(x): ...\n"})
    assert Package(package).parameters("kernels.k") is None


def test_circular_imports_end(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {
            "__init__.py": "from .a import *\n",
            "a.py": "from .b import *\n",
            "b.py": "from .a import *\nfrom .a import k\n",
        },
    )
    assert Package(package).parameters("kernels.k") is None


def test_a_helper_tells_the_form_that_it_returns_through_other_functions(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {
            "__init__.py": "",
            "config.py": "def load(name):\n    config, tuned = {}, False\n    return config, tuned\n",
            "pair.py": "from .config import load\ndef _config(M):\n    if M:\n        return load('k')\n",
            "plain.py": "from .config import load\ndef _config(M):\n    config, _ = load('k')\n    return config\n",
            "gemm.py": "from .pair import _config\ndef gemm(x): return _config(x)\n",
        },
    )
    found = Package(package, ScanPlan(helpers=("_config",)))
    assert found.parameters("kernels.gemm._config") == ("M", "-> tuple")
    assert found.parameters("kernels.plain._config") == ("M", "-> dict")


def test_an_enumeration_of_cpp_has_the_members_of_its_header(tmp_path: Path) -> None:
    package = write(tmp_path, {"__init__.py": "from .enum import *\n", "enum.py": "Kind = type(_Kind(0))\n"})
    plan = ScanPlan(enums={"kernels.enum.Kind": ("csrc/kind.h",)})
    assert Package(package, plan).parameters("kernels.Kind.per_row") == VALUE, "believed without a header"
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "kind.h").write_text("enum class Kind : int\n{\n  No = 0, // none\n  per_row,\n};\n")
    assert Package(package, plan).parameters("kernels.Kind.per_row") == VALUE
    assert Package(package, plan).parameters("kernels.Kind.per_column") is None


def test_a_scan_lists_symbols_under_every_path(tmp_path: Path) -> None:
    package = write(
        tmp_path,
        {
            "__init__.py": "from .ops import *\nfrom .utility import dtypes as dtypes\nimport os\n",
            "ops.py": "import os\nclass T:\n    def mm(self, x, w): ...\ntuned = T()\ndef fake(x): ...\ndef k(x): 0\n",
            "utility/dtypes.py": "import torch\nfp8 = torch.float8_e4m3fn\n",
        },
    )
    plan = ScanPlan(modules=("__init__.py", "ops.py", "utility/*.py"), values=("utility/dtypes.py",), skip=("fake",))
    expected = {
        "kernels.dtypes.fp8": VALUE,
        "kernels.k": ("x",),
        "kernels.ops.k": ("x",),
        "kernels.ops.tuned.mm": ("x", "w"),
        "kernels.utility.dtypes.fp8": VALUE,
    }
    assert expected == scan(package, plan)


# --- the installed AITER ---------------------------------------------------------------------------------------------


def test_the_installed_aiter_is_read_without_importing_it() -> None:
    found = Package(installed_aiter(), AITER.plan)
    expected = ("XQ", "WQ", "x_scale", "w_scale", "bias=None", "dtype=dtypes.bf16", "splitK=None")
    assert expected == found.parameters("aiter.gemm_a8w8_CK")
    assert "aiter" not in sys.modules


@pytest.mark.parametrize(
    "symbol",
    [
        "aiter.QuantType.per_1x128",
        "aiter.dtypes.fp4x2",
        "aiter.dtypes.fp8_e8m0",
        "aiter.get_hip_quant",
        "aiter.hipb_mm",
        "aiter.ops.shuffle.shuffle_weight",
        "aiter.ops.triton.quant.dynamic_mxfp4_quant",
        "aiter.tuned_gemm.tgemm.mm",
    ],
)
def test_the_installed_aiter_offers_what_binders_use(symbol: str) -> None:
    assert Package(installed_aiter(), AITER.plan).parameters(symbol) is not None


def test_the_installed_aiter_has_the_api_of_its_release() -> None:
    release = AITER.at(AITER.releases.index("v0.1.7.post2"))
    found = scan(installed_aiter(), AITER.plan)
    assert {symbol: release.parameters(symbol) for symbol in found} == found
    assert {symbol for symbol in AITER.symbols if release.parameters(symbol) is not None} <= found.keys()


def test_an_installed_library_decides_by_its_source() -> None:
    assert at("0.1.7.post2.dev18", installed_aiter()).form(A4W4) == 1
    assert at("99", installed_aiter()).form(A4W4) == 1, "whatever its version says"


# --- the history of releases -----------------------------------------------------------------------------------------


def test_the_history_has_every_release() -> None:
    assert (len(AITER.releases), AITER.releases[0], AITER.releases[-1]) == (53, "v0.1.1", "v0.1.20.post1")


def test_the_history_survives_being_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "aiter.json"
    file.write_text(AITER.text(), encoding="utf-8")
    assert (RELEASES / "aiter.json").read_text(encoding="utf-8") == read_history(file).text()


def test_a_file_that_is_no_history_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "aiter.json").write_text('{"library": "aiter"}')
    with pytest.raises(SchemeFileError, match=r"aiter\.json: not a history of releases: 'scan'"):
        read_history(tmp_path / "aiter.json")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.20", "v0.1.20"),
        ("v0.1.20", "v0.1.20"),
        ("0.1.20+rocm7", "v0.1.20"),
        ("0.1.21.dev3", "v0.1.20.post1"),
        ("2.0", "v0.1.20.post1"),
        (None, "v0.1.20.post1"),
        ("0.1.7.post2.dev18", "v0.1.7.post1"),
        ("0.1.10rc1", "v0.1.9.post1"),
    ],
)
def test_a_version_is_taken_for_the_release_before_it(version: str | None, expected: str) -> None:
    place = AITER.nearest(version)
    assert place is not None and AITER.releases[place] == expected


def test_a_version_before_every_release_has_no_release() -> None:
    assert AITER.nearest("0.1.0") is None
    assert isinstance(at("0.1.0").form(A4W4), Reason)


def test_old_module_paths_end_where_their_files_moved() -> None:
    symbol = "aiter.ops.triton.gemm_a8w8.gemm_a8w8"
    before, after = (AITER.at(AITER.releases.index(tag)) for tag in ("v0.1.9.post1", "v0.1.10"))
    assert before.parameters(symbol) is not None
    assert after.parameters(symbol) is None


def test_configuration_functions_return_pairs_from_v0_1_9_post1_on() -> None:
    symbol = "aiter.ops.triton.gemm_afp4wfp4._get_config"
    before, after = (AITER.at(AITER.releases.index(tag)) for tag in ("v0.1.9", "v0.1.9.post1"))
    assert before.parameters(symbol) == ("M", "N", "K", "shuffle=False", "-> dict")
    assert after.parameters(symbol) == ("M", "N", "K", "shuffle=False", "-> tuple")


def test_tags_of_candidates_branches_and_other_projects_are_no_releases() -> None:
    tags = ["v0.1.10", "v0.1.9", "v0.1.13-rc1", "v0.1.13.dev0", "v0.1.17-longctx", "archive/2.4", "v0.1.9.post1"]
    assert release_tags(tags) == ("v0.1.9", "v0.1.9.post1", "v0.1.10")


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")
    subprocess.run(("git", "-C", str(folder), *identity, *words), check=True, capture_output=True)


def test_a_history_is_scanned_from_git_tags(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for tag, text in (("v1.0", "def k(a): ...\n"), ("v1.1", "def k(a): ...\n"), ("v2.0", ""), ("v2.0rc1", "")):
        write(tmp_path, {"__init__.py": "from .ops import *\n", "ops.py": text, "big.bin": tag})
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", tag)
        git(tmp_path, "tag", tag)
    history = scan_history(tmp_path, "kernels", ScanPlan(modules=("*.py",)))
    assert history.releases == ("v1.0", "v1.1", "v2.0")
    assert history.symbols == {"kernels.ops.k": [(0, ("a",)), (2, None)]}
    assert history.aliases == {"kernels.k": [(0, "kernels.ops.k"), (2, None)]}


def test_a_folder_without_git_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(QschemeError, match=str(tmp_path)):
        scan_history(tmp_path, "kernels", ScanPlan())


# --- offers ----------------------------------------------------------------------------------------------------------


def test_the_newest_form_that_fits_is_taken() -> None:
    assert [at(version).form(A4W4) for version in ("0.1.8", "0.1.9", "0.1.20.post1")] == [1, 0, 0]


def test_an_absent_symbol_is_a_reason_with_the_first_release_that_has_it() -> None:
    expected = Reason(
        "symbol",
        "aiter.ops.triton.gemm.basic.gemm_afp4wfp4.gemm_afp4wfp4_preshuffle (v0.1.7.post3 and later)",
        "aiter 0.1.3, which has no gemm_afp4wfp4_preshuffle",
    )
    assert expected == at("0.1.3").form(PRESHUFFLE)


def test_a_missing_keyword_is_a_reason_with_the_parameters_found() -> None:
    newest = kernel(A4W4.forms[0])
    expected = Reason(
        "symbol",
        "aiter.gemm_a4w4 with keyword dtype (v0.1.9 and later)",
        "aiter 0.1.8 with parameters (A, B, A_scale, B_scale, out, bias=None, alpha=1.0, beta=0.0, bpreshuffle=True) "
        "without dtype and with out required",
    )
    assert expected == at("v0.1.8").form(newest)


def test_a_release_limit_holds_though_the_signature_fits() -> None:
    symbol = "aiter.gemm_a8w8_CK"
    late, early = kernel(form(symbol, 4, since="v0.1.12")), kernel(form(symbol, 4, until="v0.1.10"))
    assert Reason("symbol", f"{symbol} of aiter v0.1.12 and later", "aiter 0.1.11") == at("0.1.11").form(late)
    assert Reason("symbol", f"{symbol} of aiter v0.1.10 and earlier", "aiter 0.1.11") == at("0.1.11").form(early)
    assert [at("0.1.12").form(late), at("0.1.10+local").form(early)] == [0, 0]


def test_an_unknown_version_leaves_the_decision_to_the_signature(tmp_path: Path) -> None:
    package = write(tmp_path, {"__init__.py": "def k(a): ...\n"})
    bounded = kernel(form("kernels.k", 1, since="v9"), library="kernels")
    assert offers(package).form(bounded) == 0
    assert isinstance(offers(package, "1.0").form(bounded), Reason)


def test_a_kernel_with_a_configuration_needs_the_function_that_finds_it() -> None:
    configured = kernel(Form(("aiter.gemm_a8w8_CK",), 4, (), config=("aiter.ops.nowhere._get_config",)))
    expected = Reason("symbol", "aiter.ops.nowhere._get_config", "aiter 0.1.20, which has no _get_config")
    assert expected == at("0.1.20").form(configured)


def test_an_optional_keyword_is_accepted_only_where_the_function_has_it() -> None:
    rows = kernel(form("aiter.per_group_quant_hip", 1, "quant_dtype"))
    assert at("0.1.20").accepts(rows, "scale_type")
    assert not at("0.1.18").accepts(rows, "scale_type")
    assert not at("0.1.20").accepts(rows, "hadamard_rotate")
    assert not at("0.1.20").accepts(rows, "x"), "it is passed by position already"
    assert not at("0.1.1").accepts(PRESHUFFLE, "y"), "no form fits"


def test_older_compares_versions_and_not_words() -> None:
    assert at("0.1.9").older("aiter", "v0.1.10")
    assert not at("0.1.10").older("aiter", "v0.1.10")
    assert not at(None).older("aiter", "v0.1.10")


def test_an_absent_library_is_a_reason_of_its_own() -> None:
    gone = ReleaseOffers({"aiter": Library("aiter", absence="nothing installed")}, RELEASES)
    assert Reason("library", "aiter", "nothing installed") == gone.form(A4W4)


@pytest.mark.parametrize("collecting", [True, False])
def test_reading_source_leaves_the_garbage_collector_as_it_was(collecting: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        at("0.1.7.post2.dev18", installed_aiter()).form(A4W4)
        assert collecting == gc.isenabled()
    finally:
        (gc.enable if was else gc.disable)()


def test_offers_may_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(at("0.1.8"))).form(A4W4) == 1


# --- packages that are not what they seem ----------------------------------------------------------------------------


def test_an_empty_folder_of_the_right_name_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "aiter").mkdir()
    assert not is_library(tmp_path / "aiter", AITER.symbols)


def test_another_project_of_the_same_name_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text(
        "async def map(function, stream): ...\nasync def join(*streams): ...\n"
    )
    assert not is_library(tmp_path / "aiter", AITER.symbols)
    assert is_library(installed_aiter(), AITER.symbols)


def test_a_removed_symbol_is_unavailable_and_its_neighbour_is_not(tmp_path: Path) -> None:
    package = write(tmp_path, {"__init__.py": "def gemm_blockscale(XQ, WQ, dtype=None): ...\n"})
    shuffled = kernel(form("kernels.gemm_blockscale_bpreshuffle", 2, "dtype"), library="kernels")
    plain = kernel(form("kernels.gemm_blockscale", 2, "dtype"), library="kernels")
    found = offers(package, "3.1")
    expected = "kernels 3.1, which has no gemm_blockscale_bpreshuffle"
    assert Reason("symbol", "kernels.gemm_blockscale_bpreshuffle", expected) == found.form(shuffled)
    assert found.form(plain) == 0


def test_a_renamed_keyword_is_unavailable(tmp_path: Path) -> None:
    package = write(tmp_path, {"__init__.py": "def gemm(x_fp4, w_preshuf): ...\n"})
    reason = offers(package, "3.1").form(kernel(form("kernels.gemm", 0, "x", "w"), library="kernels"))
    assert isinstance(reason, Reason) and reason.needs == "kernels.gemm with keywords x, w"


def test_a_file_that_python_cannot_read_is_a_reason_that_names_it(tmp_path: Path) -> None:
    package = write(tmp_path, {"__init__.py": "from .ops import *\n", "ops.py": "def k(a:\n"})
    reason = offers(package, "3.1").form(kernel(form("kernels.k", 1), library="kernels"))
    assert isinstance(reason, Reason) and f"kernels 3.1, where {package / 'ops.py'}:1 is not Python" in reason.found
    assert not is_library(package, ["kernels.k"])


class Overloads:
    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


class MadeUp:
    def __getattr__(self, name: str) -> object:
        return Overloads()


def test_a_namespace_that_makes_up_its_attributes_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("stencil")
    module.__dict__.update(__version__="1.0", ops=MadeUp(), real=print)
    monkeypatch.setitem(sys.modules, "stencil", module)
    found = ReleaseOffers({"stencil": Library("stencil", "1.0")}, {})
    assert isinstance(found.form(kernel(form("stencil.ops.gemm", 2), library="stencil")), Reason)
    assert found.form(kernel(form("stencil.real", 2), library="stencil")) == 0


def test_torch_operators_are_found_by_their_overloads() -> None:
    import torch

    found = ReleaseOffers({"torch": Library("torch", torch.__version__)}, {})
    given = [
        found.form(kernel(form(symbol, 2), library="torch"))
        for symbol in ("torch._int_mm", "torch.nn.functional.linear", "torch.ops.aten.mm", "torch.ops.aten.mm.default")
    ]
    assert given == [0, 0, 0, 0]
    for symbol in ("torch.no_such_function", "torch.ops.aten.no_such_operator", "torch.ops.nowhere.k"):
        assert isinstance(found.form(kernel(form(symbol, 2), library="torch")), Reason)


def test_a_library_in_another_version_than_the_running_one_is_believed() -> None:
    found = ReleaseOffers({"torch": Library("torch", "99.0")}, {})
    assert found.form(kernel(form("torch.no_such_function", 2), library="torch")) == 0


def test_signatures_are_read_without_torch_and_without_the_library() -> None:
    code = "import qscheme.signatures, sys; print({'torch', 'aiter', 'triton'} & sys.modules.keys())"
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
