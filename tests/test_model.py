"""What the YAML may say: every text gives files or located problems, and the schemas for editors agree with the compiler."""

from __future__ import annotations

import json
import random
import re
import typing
from pathlib import Path

import jsonschema
import pytest
import yaml
from folders import EVERY_FEATURE, edited, problems
from pydantic import BaseModel

from qscheme.compiler.emit import emit
from qscheme.compiler.folder import read_folder
from qscheme.compiler.resolve import resolve
from qscheme.compiler.schemas import SCHEMAS
from qscheme.compiler.source import read_file
from qscheme.tables import shipped_schemes

GENERATED = Path(__file__).resolve().parent.parent / "generated"
PROBLEM = re.compile(r"[^:]+\.yaml:[1-9]\d*:[1-9]\d*: \S[^\n]*")
WORDS = (
    "7.10", "true", "null", "[]", "{}", "x", "-1", "0", "3", "99999999", "1e5", "''", "per_token", "alpha", "triton.x",
    "class", "a b", "[1]", "{a: 1}", "bf16", "'\\'", "é", "self", "torch", "m", "weight", "1x32", "k_major", "per_row",
    "transposed", "output_dtype", "int8", "static", "e8m0", "bytes", "any",
)  # fmt: skip


def mutated(text: str, chance: random.Random) -> str:
    """The text with a word, a key or a line deleted, repeated, renamed or made another type."""
    words_of_it = list(re.finditer(r"[A-Za-z0-9_.]+", text))
    word = chance.choice(words_of_it)
    lines = text.split("\n")
    line = chance.randrange(len(lines))
    match chance.randrange(8):
        case 0:
            return text[: word.start()] + text[word.end() :]
        case 1 | 2 | 3:
            return text[: word.start()] + chance.choice(WORDS) + text[word.end() :]
        case 4:
            return text[: word.start()] + chance.choice(words_of_it).group() + text[word.end() :]
        case 5:
            return "\n".join([*lines[:line], *lines[line + 1 :]])
        case 6:
            return "\n".join([*lines[:line], lines[line], *lines[line:]])
        case _:
            place = chance.randrange(len(text))
            return text[:place] + chance.choice(":,{}[]-#'\"\n") + text[place:]


@pytest.mark.parametrize("seed", range(4))
def test_any_mistake_gives_files_or_located_problems(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    folder = edited(tmp_path)
    files = sorted(folder.rglob("*.yaml"))
    for _ in range(20):
        file = chance.choice(files)
        text = file.read_text()
        file.write_text(mutated(text, chance))
        catalogue, found = resolve(read_folder(folder, folder))
        for problem in found:
            assert PROBLEM.fullmatch(str(problem)), str(problem)
            assert "Traceback" not in problem.message
        if not found:
            for name, generated in emit(catalogue).items():
                if name.endswith(".py"):
                    compile(generated, name, "exec")
        file.write_text(text)


@pytest.mark.parametrize("file", sorted(shipped_schemes().rglob("*.yaml")), ids=lambda file: file.name)
def test_shipped_files_agree_with_the_schema_that_their_first_line_names(file: Path) -> None:
    kind = {"devices": "devices", "switches": "switches"}.get(file.stem, "scheme")
    kind = "kernels" if file.parent.name == "kernels" else kind
    schema = json.loads((GENERATED / f"{kind}.schema.json").read_text())
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)

    data = json.loads(json.dumps(read_file(file, file.name).data))

    assert [] == [f"{error.json_path}: {error.message}" for error in checker.iter_errors(data)]


@pytest.mark.parametrize("file", sorted(shipped_schemes().rglob("*.yaml")), ids=lambda file: file.name)
def test_the_first_line_of_a_shipped_file_leads_an_editor_to_its_schema(file: Path) -> None:
    first = file.read_text().partition("\n")[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)

    assert named is not None
    assert (file.parent / named.group(1)).resolve().is_file()


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("one_scale", "format: int8", "format: int9"),
        ("one_scale", "title:", "titel:"),
        ("one_scale", "mode: static", "mode:"),
        ("four_bits", "when: {m: {max: 31}}", "when: {m: {max: many}}"),
        ("kernels/fast", "does: gemm", "does: multiply"),
        ("kernels/fast", "fold_rows: 16", "fold_rows: 1"),
        ("kernels/fast", "mx: true", "mx: false"),
        ("kernels/fast", "codes: fp4x2", "output: [bf16]"),
        ("devices", "fp8: fnuz", "fp8: fnzu"),
        ("switches", "default: false", "default: off"),
    ],
)
def test_an_editor_and_the_compiler_refuse_the_same(kind: str, old: str, new: str, tmp_path: Path) -> None:
    folder = edited(tmp_path)
    file = folder / f"{kind}.yaml"
    file.write_text(file.read_text().replace(old, new, 1))
    schema = kind.partition("/")[0] if kind in ("devices", "switches") or "/" in kind else "scheme"
    checker = jsonschema.Draft202012Validator(json.loads((GENERATED / f"{schema}.schema.json").read_text()))

    data = json.loads(json.dumps(read_file(file, file.name).data))

    assert [] != problems(folder)
    assert not checker.is_valid(data)


def test_schemas_have_no_null_and_describe_every_model() -> None:
    for kind in SCHEMAS:
        text = (GENERATED / f"{kind}.schema.json").read_text()
        assert '"null"' not in text
        for name, model in json.loads(text).get("$defs", {}).items():
            assert model.get("description"), name
            assert model.get("additionalProperties") is False, name


def fields(model: type[BaseModel]) -> typing.Iterator[tuple[str, str, str | None]]:
    for name, field in model.model_fields.items():
        yield model.__name__, name, field.description


@pytest.mark.parametrize("name", ["QuantizerModel", "GemmModel", "OperandModel", "KernelFile"])
def test_every_field_of_a_kernel_says_what_it_means(name: str) -> None:
    from qscheme.compiler import kernel_model

    plain = {"does", "scale", "config", "rows", "tuned_tables", "kernels"}

    described = {field for _, field, text in fields(getattr(kernel_model, name)) if text}

    assert set(getattr(kernel_model, name).model_fields) - described <= plain


@pytest.mark.parametrize("field", ["since", "until"])
@pytest.mark.parametrize("version", ["7.10", "0.30", "7", "1e3"])
def test_version_numbers_must_be_quoted(field: str, version: str, tmp_path: Path) -> None:
    old = {"since": "since: v1.2", "until": "until: v3.0"}[field]
    folder = edited(tmp_path, kernels__fast=(old, f"{field}: {version}"))

    (problem,) = problems(folder)

    assert problem.endswith(
        f"kernels.small_product.{field}: needs text, found the number {version}; "
        f"quote it, as all version numbers: '{version}'"
    )


def test_releases_are_ordered_by_their_parts(tmp_path: Path) -> None:
    assert [] == problems(edited(tmp_path / "a", kernels__fast=("until: v3.0", "until: v1.10")))
    assert 1 == len(problems(edited(tmp_path / "b", kernels__fast=("until: v3.0", "until: v1.1.post9"))))


def test_a_kernel_that_is_like_another_is_the_whole_of_it(tmp_path: Path) -> None:
    whole = yaml.safe_load((EVERY_FEATURE / "kernels" / "fast.yaml").read_text())
    stated = {"like": "small_product", "symbol": "triton.twin", "needs": {"minimum": {"n": 96}}}
    whole["kernels"]["twin"] = {**whole["kernels"]["small_product"], **stated}
    del whole["kernels"]["twin"]["like"]
    said = {**whole, "kernels": {**whole["kernels"], "twin": stated}}
    texts = []
    for folder, data in ((tmp_path / "whole", whole), (tmp_path / "like", said)):
        copy = edited(folder)
        (copy / "kernels" / "fast.yaml").write_text(json.dumps(data))
        catalogue, found = resolve(read_folder(copy, copy))
        assert () == found
        texts.append(emit(catalogue, "qscheme_generated"))

    assert '"triton.twin"' in texts[0]["qscheme_generated/kernels_fast.py"]
    assert texts[0] == texts[1]


def test_editors_take_a_kernel_that_is_like_another_and_none_that_states_nothing() -> None:
    validator = jsonschema.Draft202012Validator(json.loads((GENERATED / "kernels.schema.json").read_text()))
    file = {"library": "triton", "distributions": ["triton"]}

    assert validator.is_valid({**file, "kernels": {"one": {"like": "other"}}})
    assert not validator.is_valid({**file, "kernels": {"one": {"symbol": "triton.one"}}})


@pytest.mark.parametrize("text", ["1e-12", "1.0e-12", "1.0E-12", ".000000000001"])
def test_numbers_are_numbers_however_they_are_written(text: str, tmp_path: Path) -> None:
    folder = edited(tmp_path, one_scale=("floor: 1e-10", f"floor: {text}"))

    catalogue, found = resolve(read_folder(folder, folder))

    assert () == found
    assert [1e-12] == [s.activation.rule.floor for s in catalogue.schemes if s.name == "one_scale"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("1:32", "unknown word '1:32', did you mean '1x32'?"),
        ("1:128", "unknown word '1:128', did you mean '1x128'?"),
        ("[1, 32]", "needs one of"),
        ("0x80", "unknown word '0x80'"),
        ("012", "unknown word '012'"),
        ("no", "unknown word 'no'"),
        (
            "aitter",
            "unknown word 'aitter', known: 128x128, 1x128, 1x16, 1x32, 1x64, 32x32, per_channel, per_tensor, per_token",
        ),
        ("per_tokn", "unknown word 'per_tokn', did you mean 'per_token'?"),
    ],
)
def test_a_granularity_is_one_of_its_words_as_it_is_written(written: str, message: str, tmp_path: Path) -> None:
    folder = edited(tmp_path, one_scale=("granularity: per_tensor", f"granularity: {written}"))

    (problem,) = problems(folder)

    assert f"one_scale.yaml:5:16: activation.granularity: {message}" in problem


def test_twice_the_same_key_names_both_places(tmp_path: Path) -> None:
    folder = edited(tmp_path, one_scale=("backends:\n", "backends: []\nbackends:\n"))

    (problem,) = problems(folder)

    assert "one_scale.yaml:15:1: found the key 'backends' a second time; the first is at " in problem
    assert problem.endswith("one_scale.yaml:14:1, remove one of them")
