"""`python -m bench NAME [--quick] [--json FILE]`: run a bench, print its claims, save JSON and a picture.

Full runs are saved beside the bench (bench/NAME/results.json and .png), quick ones under out/bench.
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
    options = parser.parse_args()
    missed = 0
    for name in names() if options.name == "all" else [options.name]:
        info = machine()
        report = importlib.import_module(f"bench.{name}").run(options.quick)
        print_report(report)
        default = Path("out/bench") / f"{name}.json" if options.quick else ROOT / name / "results.json"
        target = options.json or default
        save(report, target, info)
        print(f"  saved {target}" + (f" and {target.with_suffix('.png')}" if report.plot else ""))
        missed += sum(not c.holds for c in report.claims)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
