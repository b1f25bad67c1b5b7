"""`python -m tests.mutation`: judge every mutant (`--few`: the first of each kind), print a table, exit 1 at a survivor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tensors are small
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "generated"), str(ROOT)]


def main() -> int:
    """Run the command line."""
    from mutation.equal import REASONS
    from mutation.mutants import every, few
    from mutation.run import judged
    from mutation.table import data, table

    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--few", action="store_true", help="the first mutant of each kind for each operand")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    arguments = parser.parse_args()
    verdicts = judged(few(every()) if arguments.few else every())
    found = data(verdicts, REASONS)
    print(json.dumps(found, indent=2) if arguments.json else table(found))
    return 1 if found["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
