"""All figures of a GPU in one run of under 8 minutes: ``python -m tests.bench.gpu [--wheels DIR] [--device cuda:0|cpu]``.

Runs from a checkout, without a network, within a time budget: figures without time are skipped and listed. With ``--device cpu`` every
stage runs with tiny models on a CPU: a trial of the script, not a measurement.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# Only the standard library here: the other packages may have to be installed first.
from tests.bench.gpu import wheels

BUDGET_S = 450.0
TRIAL_S = 60.0


def main() -> int:
    """Parse arguments; install if asked to; measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description="Measure a GPU, in-process and as a server.")
    parser.add_argument("--wheels", type=Path, help="install from this folder of wheels first, without a network")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu: a trial of the script with tiny models")
    parser.add_argument("--budget-s", type=float, help=f"seconds for all of it ({BUDGET_S:g}; {TRIAL_S:g} with --device cpu)")
    parser.add_argument("--output", type=Path, default=Path("bench-gpu.json"))
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes in this folder")
    options = parser.parse_args()
    default_s = TRIAL_S if options.device == "cpu" else BUDGET_S
    # 0 is a budget too: an installation may have used all of it.
    budget_s = default_s if options.budget_s is None else options.budget_s
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if options.wheels:
        argv = ["--device", options.device, "--output", str(options.output.resolve())]
        argv += ["--logs", str(options.logs.resolve())] if options.logs else []
        return wheels.run_with(options.wheels.resolve(), argv, budget_s)
    try:
        from tests.bench.gpu.run import run  # needs packages that may not be installed
    except ImportError as error:
        print(f"{error}; use --wheels DIR with the missing wheels, or install the project with its gpu extra", file=sys.stderr)
        return 2
    found, text = run(options.device, budget_s, options.logs)
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\n{text}\nwritten to {options.output}")
    return 0 if found["results"] else 1


if __name__ == "__main__":
    sys.exit(main())
