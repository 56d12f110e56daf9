"""All figures of a GPU in one run of under 8 minutes: ``python -m tests.bench.gpu [--wheels DIR] [--device cuda:0|cpu]``.

Runs from a checkout, or from the tree that ``--pack`` makes of one, without a network, within a time budget: figures without time are
skipped and listed. With ``--device cpu`` every stage runs with tiny models on a CPU: a trial of the script, not a measurement.

On a machine without a network: ``--list-wheels DIR`` names all wheels and how to fetch them; ``--pack FILE.tar`` makes the tree.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Only the standard library here: the other packages may have to be installed first.
from tests.bench.gpu import slim, wheels

BUDGET_S = 450.0
TRIAL_S = 60.0


def main() -> int:
    """Parse arguments; list, pack or install if asked to; measure, print, write."""
    options = _parser().parse_args()
    if options.list_wheels:
        print(wheels.what_to_fetch(options.list_wheels, options.python))
        return 0
    if options.pack:
        print(f"{options.pack}: {slim.save_tar(options.pack) / 1e6:.1f} MB, in the folder {slim.FOLDER}")
        return 0
    default_s = TRIAL_S if options.device == "cpu" else BUDGET_S
    # 0 is a budget too: an installation may have used all of it.
    budget_s = default_s if options.budget_s is None else options.budget_s
    seed = int(time.time()) if options.seed is None else options.seed
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if options.wheels:
        argv = ["--device", options.device, "--output", str(options.output.resolve()), "--seed", str(seed)]
        argv += ["--logs", str(options.logs.resolve())] if options.logs else []
        argv += ["--engines"] if options.engines else []
        argv += ["--texts", str(options.texts.resolve())] if options.texts else []
        return wheels.run_with(options.wheels.resolve(), argv, budget_s)
    try:
        from tests.bench.gpu.run import STAGES, engine_stages, run  # needs packages that may not be installed
    except ImportError as error:
        print(f"{error}; use --wheels DIR with the missing wheels (see --list-wheels), or install the gpu extra", file=sys.stderr)
        return 2

    def deliver(found: dict[str, Any], text: str) -> None:  # Any: JSON
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"\n{text}\nwritten to {options.output}", flush=True)

    chosen = engine_stages(options.texts) if options.engines else STAGES
    return 0 if run(options.device, budget_s, options.logs, seed, deliver, chosen) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description="Measure a GPU, in-process and as a server.")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install from this folder of wheels first, without a network")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu: a trial of the script with tiny models")
    parser.add_argument("--engines", action="store_true", help="only what tells whether another engine would be worth it")
    parser.add_argument("--texts", type=Path, help="with --engines: texts, one a line, whose labels are compared (made ones)")
    parser.add_argument("--budget-s", type=float, help=f"seconds for all of it ({BUDGET_S:g}; {TRIAL_S:g} with --device cpu)")
    parser.add_argument("--seed", type=int, help="of the order in which things are compared; drawn if not given, and recorded")
    parser.add_argument("--output", type=Path, default=Path("bench-gpu.json"))
    parser.add_argument("--logs", type=Path, help="keep the logs of all processes in this folder")
    parser.add_argument("--list-wheels", type=Path, metavar="DIR", help="no run: name all wheels, with the commands that fetch them to DIR")
    parser.add_argument("--python", default="", help="with --list-wheels: the Python of the GPU's machine, such as 3.12 (this one's)")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="no run: write the tree that the script needs into FILE, a tar")
    return parser


if __name__ == "__main__":
    sys.exit(main())
