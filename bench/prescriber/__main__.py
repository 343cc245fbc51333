"""`python -m bench.prescriber [--quick] [--json FILE] [--out DIRECTORY]`: this bench alone."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bench.prescriber import DESCRIPTION, measure


def main() -> None:
    """Measure, print a table, write JSON and PNGs."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    claims = measure(given.quick, given.out)
    seconds = time.perf_counter() - start
    for one in claims:
        print(
            f"{'ok  ' if one['holds'] else 'MISS'} {one['claim']} [{one['source']}; {one['goal']}]: {one['measured']}"
        )
    print(f"{sum(bool(one['holds']) for one in claims)} of {len(claims)} claims hold, {seconds:.0f} s")
    if given.json is not None:
        given.json.write_text(json.dumps({"seconds": seconds, "quick": given.quick, "claims": claims}, indent=1) + "\n")


if __name__ == "__main__":
    main()
