"""Each capability condition is true exactly where it should be, on every device, and its reason says what was found."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from qscheme.compiler.conditions import CONDITIONS, any_of, checks_of
from qscheme.compiler.ir import KnownBad, Needs, TunedNeed, VersionRange, WhereNeed
from qscheme.facts import Facts
from qscheme.layer import LayerFacts
from qscheme.tables import load
from qscheme.types import REASON_ORDER, Reason, Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from qscheme.types import Device

TABLES = load()
DEVICES = sorted(TABLES.devices.values())
SWITCHES = {name: Switch(name, switch.default, switch.variables, "") for name, switch in TABLES.switches.items()}
LAYER = LayerFacts(n=64, k=256)


def reasons(needs: Needs, facts: Facts, layer: LayerFacts = LAYER) -> list[str]:
    """The reasons that generated code would give: its tests and texts, run as it runs them."""
    found: list[str] = []
    for check in checks_of(needs, SWITCHES):
        names = {"facts": facts, "layer": layer, **{table.upper(): table for table in TABLES.tuned}}
        if eval(check.test, names):
            found.append(Reason(check.kind, check.needs, eval(check.found, names)).text)
    return found


@dataclass(frozen=True)
class Row:
    """One condition: where it holds, and the reason where it does not."""

    word: str
    needs: Needs
    holds: Callable[[Device], bool]
    needed: str


HARDWARE = [
    Row("arch", Needs(arch=("gfx942",)), lambda device: device.arch == "gfx942", "gfx942"),
    Row("arch", Needs(arch=("gfx90a", "sm_90", "cpu")), lambda d: d.arch in {"gfx90a", "sm_90", "cpu"}, "gfx90a, sm_90 or cpu"),
    Row("vendor", Needs(vendor=("amd",)), lambda device: device.vendor == "amd", "a device of amd"),
    Row("vendor", Needs(vendor=("amd", "nvidia")), lambda d: d.vendor != "cpu", "a device of amd or nvidia"),
    Row("mx", Needs(mx=True), lambda d: d.arch in {"gfx950", "gfx1250", "sm_100", "sm_103", "sm_120"}, "a device with MX matrix units"),
    Row("int8", Needs(int8=True), lambda d: d.int8, "a device with INT8 matrix units"),
]  # fmt: skip


@pytest.mark.parametrize("row", HARDWARE, ids=lambda row: row.needed)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_a_condition_on_the_device_holds_where_it_should(row: Row, device: Device) -> None:
    expected = [] if row.holds(device) else [f"needs {row.needed}, found {device.arch}"]

    assert expected == reasons(row.needs, Facts.simulate(device.arch))


@pytest.mark.parametrize("row", HARDWARE, ids=lambda row: row.needed)
@pytest.mark.parametrize("arch", ["gfx9500", "gfx94", "gfx", "GFX942", "sm_900", "gfx1200x"])
def test_an_unknown_architecture_has_nothing(row: Row, arch: str) -> None:
    assert [f"needs {row.needed}, found {arch}"] == reasons(row.needs, Facts.simulate(arch))


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize(
    ("needs", "n", "k", "expected"),
    [
        (Needs(n=16, k=16), 32, 48, []),
        (Needs(n=16, k=16), 24, 48, ["needs N a multiple of 16, found N = 24"]),
        (Needs(n=16, k=32), 24, 48, ["needs N a multiple of 16, found N = 24", "needs K a multiple of 32, found K = 48"]),
        (Needs(k=128), 1, 127, ["needs K a multiple of 128, found K = 127"]),
        (Needs(min_n=64), 64, 1, []),
        (Needs(min_n=64, min_k=2), 63, 1, ["needs N of at least 64, found N = 63", "needs K of at least 2, found K = 1"]),
    ],
)  # fmt: skip
def test_a_condition_on_the_shape_is_the_same_on_every_device(
    device: Device, needs: Needs, n: int, k: int, expected: list[str]
) -> None:
    assert expected == reasons(needs, Facts.simulate(device.arch), LayerFacts(n=n, k=k))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("output", [("bf16",), ("bf16", "fp16"), ("fp16", "fp32"), ("bf16", "fp16", "fp32"), ()])
def test_an_output_dtype_is_one_that_the_kernel_writes(dtype: str, output: tuple[str, ...]) -> None:
    expected = [] if not output or dtype in output else [f"needs output in {any_of(output)}, found {dtype}"]

    assert expected == reasons(Needs(output=output), Facts.simulate("gfx950"), replace_dtype(dtype))


def replace_dtype(dtype: str) -> LayerFacts:
    return LayerFacts(n=64, k=256, out_dtype=dtype)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize("release", ["0.1.12", "0.1.13", "0.1.13.post1", "0.1.20", None])
def test_a_release_is_needed_on_its_architectures_alone(device: Device, release: str | None) -> None:
    needs = Needs(where=(WhereNeed(("gfx1250", "gfx950"), (), "aiter", "v0.1.13"),))
    concerned = device.arch in {"gfx1250", "gfx950"} and release == "0.1.12"

    found = reasons(needs, Facts.simulate(device.arch, aiter=release))

    assert ["needs aiter v0.1.13 or later on gfx1250 or gfx950, found 0.1.12"] * concerned == found


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_a_multiple_is_needed_on_the_devices_of_its_vendors_alone(device: Device) -> None:
    needs = Needs(where=(WhereNeed((), ("nvidia",), n=8, k=16),))
    concerned = device.vendor == "nvidia"

    found = reasons(needs, Facts.simulate(device.arch), LayerFacts(n=12, k=24))

    words = [
        "needs N a multiple of 8 on a device of nvidia, found N = 12",
        "needs K a multiple of 16 on a device of nvidia, found K = 24",
    ]
    assert words * concerned == found


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize("tuned", ["all", "none"])
def test_tuned_shapes_are_those_of_the_tables(device: Device, tuned: str) -> None:
    table = next(iter(TABLES.tuned.values()))
    needs = Needs(tuned=(TunedNeed(table.name, (16, 128)),))
    (check,) = checks_of(needs, SWITCHES)
    names = {"facts": Facts.simulate(device.arch, tuned=tuned), "layer": LAYER, table.name.upper(): table}

    assert (tuned == "none") == eval(check.test, names)
    assert f"N and K tuned in {table.name} for M = 16 and 128" == check.needs


@pytest.mark.parametrize("switch", sorted(SWITCHES))
@pytest.mark.parametrize("on", [True, False])
def test_a_switch_that_is_off_names_every_variable_that_turns_it_on(switch: str, on: bool) -> None:
    cure = " or ".join(f"{variable}=1" for variable in SWITCHES[switch].variables)

    found = reasons(Needs(switches=(switch,)), Facts.simulate("gfx950", switches={switch: on}))

    assert ([] if on else [f"needs switch {switch} on ({cure}), found off"]) == found


@pytest.mark.parametrize("on", [True, False])
def test_sums_that_depend_on_m_are_refused_in_batch_invariant_mode(on: bool) -> None:
    needs = Needs(varies_with_m=("first", "second"))

    found = reasons(needs, Facts.simulate("gfx950", switches={"batch_invariant": on}))

    words = "needs switch batch_invariant off (the sums of first and second depend on M), found on"
    assert [words] * on == found


EVERYTHING = Needs(
    arch=("gfx950",), vendor=("amd",), mx=True, int8=True, one_scale=True, n=16, k=16, min_n=64, min_k=64, output=("bf16",),
    tuned=(TunedNeed("a4w4_blockscale", (1,)),), switches=("aiter",), varies_with_m=("gemm",),
    where=(WhereNeed(("gfx950",), (), "aiter", "v0.1.5", 32, 32),),
    versions=(VersionRange("cuda", "v12.8", "v14.0"),),
    known_bad=(KnownBad("gemm", ("gfx950",), (VersionRange("rocm", "v7.0", "v7.3"),), "wrong", "owner/project#1"),),
)  # fmt: skip


def test_checks_come_in_the_order_in_which_reasons_are_told() -> None:
    kinds = [REASON_ORDER.index(check.kind) for check in checks_of(EVERYTHING, SWITCHES)]

    assert sorted(kinds) == kinds


def test_every_condition_that_is_tested_before_a_call_makes_a_check() -> None:
    for condition in CONDITIONS:
        if condition.checks is None:
            assert condition.phase == "call"
        else:
            assert list(condition.checks(EVERYTHING, SWITCHES)), condition.word


def test_no_condition_makes_a_check_where_nothing_is_needed() -> None:
    assert () == checks_of(Needs(), SWITCHES)


def test_needs_are_lower_case_words_without_a_full_stop() -> None:
    for check in checks_of(EVERYTHING, SWITCHES):
        assert re.fullmatch(r"[a-zNK][^\n]*[^.\n]", check.needs), check.needs


def test_prose_says_every_condition_once() -> None:
    prose = [check.prose for check in checks_of(EVERYTHING, SWITCHES)]

    assert len(set(prose)) == len(prose)


@pytest.mark.parametrize(
    ("words", "text"), [(("a",), "a"), (("a", "b"), "a or b"), (("a", "b", "c"), "a, b or c")]
)  # fmt: skip
def test_alternatives_are_told_in_a_sentence(words: tuple[str, ...], text: str) -> None:
    assert text == any_of(words)


def test_a_release_before_which_a_multiple_is_needed_frees_later_ones() -> None:
    needs = Needs(where=(replace(WhereNeed(("gfx950",), (), "aiter", None, None, 512), before="v0.1.16"),))

    old, new = Facts.simulate("gfx950", aiter="0.1.15"), Facts.simulate("gfx950", aiter="0.1.16")

    assert ["needs K a multiple of 512 on gfx950 with aiter before v0.1.16, found K = 256"] == reasons(needs, old)
    assert [] == reasons(needs, new)


INSIDE = {
    "6.9": False, "6.10": False, "7": True, "7.0": True, "7.0.1": True, "7.2": True, "7.2.26015": True, "7.2.99": True,
    "7.3rc1": True, "7.3": False, "7.3.1": False, "7.10": False, "13.0": False,
}  # fmt: skip
"""Whether a version is in [7.0, 7.3), by its parts and not by its text."""


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_versions_of_the_toolchain_are_in_their_range_by_their_parts(device: Device) -> None:
    needs = Needs(versions=(VersionRange("rocm", "v7.0", "v7.3"),))
    words = "needs rocm v7.0 or later and before v7.3, found "

    for version, inside in INSIDE.items():
        assert [words + version] * (not inside) == reasons(needs, Facts.simulate(device.arch, rocm=version))
    assert [f"{words}given as absent"] == reasons(needs, Facts.simulate(device.arch, rocm="none"))
    foreign = device.vendor != "amd"
    assert [f"{words}none, on a device of {device.vendor}"] * foreign == reasons(needs, Facts.simulate(device.arch))


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_a_kernel_is_known_to_be_wrong_on_its_architecture_and_in_its_versions_alone(device: Device) -> None:
    entry = KnownBad("gemm", ("gfx942", "gfx950"), (VersionRange("rocm", "v7.0", "v7.3"),), "wrong", "owner/project#1")
    words = (
        "needs rocm before v7.0, or v7.3 or later, on gfx942 or gfx950, for gemm (wrong; owner/project#1), found rocm"
    )

    for version, inside in INSIDE.items():
        concerned = inside and device.arch in {"gfx942", "gfx950"}
        found = reasons(Needs(known_bad=(entry,)), Facts.simulate(device.arch, rocm=version))
        assert [f"{words} {version}"] * concerned == found
    assert [] == reasons(Needs(known_bad=(entry,)), Facts.simulate(device.arch))
    assert [] == reasons(Needs(known_bad=(entry,)), Facts.simulate(device.arch, rocm=None))


@pytest.mark.parametrize(
    ("torch", "triton", "bad"), [("2.5.0", "3.1", True), ("2.5.1", "3.1", False), ("2.5.0", "3.2", False)]
)
def test_a_kernel_that_is_wrong_with_two_versions_together_is_right_with_either_alone(
    torch: str, triton: str, bad: bool
) -> None:
    both = (VersionRange("torch", None, "v2.5.1"), VersionRange("triton", None, "v3.2"))
    needs = Needs(known_bad=(KnownBad("gemm", (), both, "wrong", "owner/project#1"),))

    words = "needs torch v2.5.1 or later or triton v3.2 or later, for gemm (wrong; owner/project#1), found torch 2.5.0, triton 3.1"
    assert [words] * bad == reasons(needs, Facts.simulate("sm_90", torch=torch, triton=triton))


@pytest.mark.parametrize(
    ("n", "full", "words"),
    [
        (24, None, ["N of the whole layer a multiple of 48, found N = 24"]),
        (24, 96, []),
        (48, None, []),
        (24, 72, ["N of the whole layer a multiple of 48, found N = 72"]),
        (
            20,
            60,
            [
                "N a multiple of 8, found N = 20 = 60 / 3; the whole 60 is no multiple either",
                "N of the whole layer a multiple of 48, found N = 60",
            ],
        ),
    ],
)
def test_a_condition_on_the_whole_layer_does_not_ask_about_its_shard(
    n: int, full: int | None, words: list[str]
) -> None:
    found = reasons(Needs(n=8, full_n=48), Facts.simulate("gfx950"), LayerFacts(n=n, k=64, full_n=full))
    assert [f"needs {text}" for text in words] == found


def test_a_condition_on_k_of_the_whole_layer_is_one_on_k_and_not_on_n() -> None:
    found = reasons(Needs(full_k=96), Facts.simulate("gfx950"), LayerFacts(n=96, k=32, full_n=96, full_k=64))
    assert ["needs K of the whole layer a multiple of 96, found K = 64"] == found
