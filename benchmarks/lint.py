"""What `qscheme lint` and `qscheme generate` cost: the shipped catalogue from a cold start, and how both grow.

    python benchmarks/lint.py [--json] [--sizes 125 250 500 1000]

shipped   `qscheme lint` under 2 s and `qscheme generate` under 3 s, each in a process of its own, the best of three
grown     folders of synthetic schemes: the shipped ones under other names, each with a floor of its own, over the
          shipped kernels. Processor time of reading, of linting and of emitting, and the time of one scheme against
          that in the smallest folder; 1.0 is linear

Processor time does not count what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from qscheme.compiler.emit import emit
from qscheme.compiler.folder import read_folder
from qscheme.compiler.lint import lint
from qscheme.compiler.resolve import resolve
from qscheme.tables import shipped_schemes

BUDGETS = {"lint": 2.0, "generate": 3.0}


def cold(*words: str) -> float:
    """Processor seconds of a command in a process of its own, the best of three."""
    seconds: list[float] = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "qscheme.cli", *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(seconds)


def synthetic(folder: Path, count: int) -> Path:
    """A folder with `count` schemes, no two with the same operands."""
    texts = [path.read_text() for path in sorted(shipped_schemes().glob("*.yaml")) if "\nscheme: " in path.read_text()]
    folder.mkdir(parents=True)
    for number in range(count):
        name = f"synthetic_{number}"
        text = re.sub(r"(?m)^scheme: .*", f"scheme: {name}", texts[number % len(texts)], count=1)
        (folder / f"{name}.yaml").write_text(re.sub(r"floor: [^}]+}", f"floor: {number + 1}.0e-12}}", text))
    return folder


def _spent() -> float:
    return sum(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def grown(folder: Path) -> dict[str, float]:
    """Processor seconds of each step on one folder, those of the formatter's process included."""
    clock = [_spent()]
    read = read_folder(folder, shipped_schemes())
    catalogue, problems = resolve(read)
    assert not problems, problems[:3]
    clock.append(_spent())
    findings = lint(read, catalogue)
    assert not findings, findings[:3]
    clock.append(_spent())
    emit(catalogue, "synthetic")
    clock.append(_spent())
    return {word: clock[step + 1] - clock[step] for step, word in enumerate(("read", "lint", "emit"))}


def main() -> int:
    """Measure, print, and say whether the budgets are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[125, 250, 500, 1000])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        schemes = str(shipped_schemes())
        shipped = {
            "lint": cold("lint", "--schemes", schemes),
            "generate": cold("generate", "--schemes", schemes, "--out", f"{folder}/out"),
        }
        rows = {size: grown(synthetic(Path(folder, str(size)), size)) for size in asked.sizes}
    least = min(rows)
    ratios = {
        size: {word: seconds / size / (rows[least][word] / least) for word, seconds in row.items()}
        for size, row in rows.items()
    }
    if asked.json:
        print(json.dumps({"shipped": shipped, "grown": rows, "ratios": ratios}, indent=2))
    else:
        for word, seconds in shipped.items():
            print(f"shipped  {word:8} {seconds:6.2f} s   budget {BUDGETS[word]:.0f} s")
        for size, row in rows.items():
            cells = "   ".join(f"{word} {row[word]:6.2f} s (x{ratios[size][word]:.2f} a scheme)" for word in row)
            print(f"grown    {size:5} schemes   {cells}")
    return int(any(seconds > BUDGETS[word] for word, seconds in shipped.items()))


if __name__ == "__main__":
    sys.exit(main())
