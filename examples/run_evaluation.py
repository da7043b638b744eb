"""A quality and speed report, from Python; `mmspec eval run` does the same on the command line."""

import json
from pathlib import Path

from mmspec.cli.main import main

out = Path("report")
# three samples are enough to see what a report looks like; leave --limit out for one that counts
methods = ["--methods", "plain,scd", "--limit", "3"]
if code := main(["eval", "run", "--suite", "shapes-full", *methods, "-o", str(out)]):
    raise SystemExit(code)

report = json.loads((out / "report.json").read_text())
for name, row in report["methods"].items():
    speedup = row["speedup_median"]  # "speedup_ci95" is its interval, with prompts enough for one
    print(name, row["contract"], "-" if speedup is None else f"speed-up {speedup:.2f}")
print(f"open {out / 'report.html'} in a browser")
