"""`python -m bench NAME [--part PART] [--quick] [--json FILE]`: run a bench, print its claims, save JSON and a picture.

Full runs are saved beside the bench (bench/NAME/results.json and .png; of a part: PART.json and .png), quick ones under
out/bench. A part is a module of the bench that can be run alone.
Exit code 1 if a claim does not hold, so that a script can tell.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from bench.harness import ROOT, machine, print_report, save


def names() -> list[str]:
    return sorted(p.parent.name for p in ROOT.glob("*/__init__.py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", choices=[*names(), "all"], help="which bench; 'all' for every one")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, and is it about right")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    parser.add_argument("--part", metavar="PART", help="only this part of the bench, a module bench/NAME/PART.py")
    options = parser.parse_args()
    if options.part and not (ROOT / options.name / f"{options.part}.py").exists():
        parser.error(f"bench {options.name} has no part {options.part!r}")
    missed = 0
    for name in names() if options.name == "all" else [options.name]:
        info = machine()
        part = f".{options.part}" if options.part else ""
        report = importlib.import_module(f"bench.{name}{part}").run(options.quick)
        print_report(report)
        file = f"{options.part or 'results'}.json"
        default = Path("out/bench") / f"{name}{part}.json" if options.quick else ROOT / name / file
        target = options.json or default
        save(report, target, info)
        print(f"  saved {target}" + (f" and {target.with_suffix('.png')}" if report.plot else ""))
        missed += sum(not c.holds for c in report.claims)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
