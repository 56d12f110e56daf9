"""``--engines``: whether an engine beside ONNX Runtime would be worth it, and what it costs to be exact.

Today's packed graph against the same network of cuBLASLt's products, flash attention and one kernel between them (``torch_bert.py``), in
fp16, fp8 and int8. PyTorch only stands for such an engine: the service would have to call these libraries itself.
Today's graph also with each batch captured, and as two copies on one GPU.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tests.bench.gpu.bench import Bench, part
from tests.bench.gpu.child import Gone
from tests.bench.gpu.report import ACCURACY, COMPANY, COPIES_ROWS, EACH_CAPTURED, ENGINE_MIXES, ENGINES, copies_rows, engine_rows
from tests.bench.gpu.serve_stages import texts_for
from tests.bench.gpu.spread import Rounds, median
from tests.bench.gpu.stages import measure_mix

# Of the H100 and the H200, dense, in the vendor's data sheets.
PEAK_TFLOPS = 989.4
# The rule: an engine is adopted from this gain on; the aim is more. Eight bits have limits of accuracy.
GAIN_MIN, GAIN_AIM = 1.2, 1.3
GOLDEN_ERROR_MAX, CHANGED_MAX = 0.1, 0.003
# One variant's check is ended after these seconds.
CHECK_S = 25.0
MATES = (2, 7, 33)


def engines(bench: Bench, until: float, texts_file: Path | None = None) -> None:
    """The speeds with 128 tokens first; then accuracy, bits, one text alone, and the other mixes."""
    texts = texts_file.read_text(encoding="utf-8").splitlines() if texts_file else texts_for(bench, "sst2")
    # On a CPU fp16 and fp8 are slow.
    texts = texts if bench.plan.on_gpu else texts[:4]
    working = [variant for variant in ENGINES if _works(bench, variant, texts, min(until, time.monotonic() + CHECK_S))]
    model, tokens = bench.plan.models["base"], bench.plan.served_tokens
    captured = _captured(bench, min(until, time.monotonic() + CHECK_S))

    def mix(name: str, share: float) -> None:
        ends_at = part(until, share)
        bench.attempt(engine_rows(name), ends_at, 0.2, partial(_mix, bench, name, [*captured, *working], ends_at))

    mix(ENGINE_MIXES[0], 0.35)
    for variant in working:
        limit = min(until, time.monotonic() + CHECK_S)
        names = [f"base_{variant}_company_{what}" for what in COMPANY]
        asked = {"model": model, "variant": variant}

        def bits(names: list[str] = names, asked: dict[str, str] = asked, limit: float = limit) -> dict[str, float]:
            said = bench.torch().ask(limit, "company", tokens=tokens, batches=MATES, **asked)
            products = bench.torch().ask(limit, "alike", **asked)
            bench.meta.setdefault("products_alike", {})[asked["variant"]] = products
            return {name: said[what] for name, what in zip(names, COMPANY, strict=True)}

        bench.attempt(names, limit, 0.2, bits)
    alone = partial(_alone, bench, ("packed", "packed_captured", *working), part(until, 0.2))
    bench.attempt([f"base_128_alone_{variant}_ms" for variant in ENGINES], until, 0.2, alone)
    bench.attempt(copies_rows(), until, 0.2, partial(_copies, bench, part(until, 0.15)))
    for number, name in enumerate(ENGINE_MIXES[1:], 1):
        mix(name, 1 / (len(ENGINE_MIXES) - number))
    bench.meta["engines"] = verdicts(bench.found)


def _works(bench: Bench, variant: str, texts: Sequence[str], until: float) -> bool:
    """Whether a variant runs at all. Its accuracy is that of the default bundle, whose weights are trained."""
    names = [f"english_{variant}_{what}" for what in ACCURACY]

    def accuracy() -> Mapping[str, float]:
        said = bench.torch().ask(until, "accuracy", variant=variant, texts=texts)
        return {name: said[what] for name, what in zip(names, ACCURACY, strict=True)}

    bench.attempt(names, until, 0.2, accuracy)
    return names[0] in bench.found


def _captured(bench: Bench, until: float) -> Sequence[str]:
    """EACH_CAPTURED, if it works: what replaying changes of the logits of the same graph, launched."""
    name = f"base_{EACH_CAPTURED}_logit_error"

    def replayed() -> Mapping[str, float]:
        # The first run of a shape captures it, the last one replays it.
        variants = ("packed", EACH_CAPTURED, EACH_CAPTURED)
        asked = [bench.inside().ask(until, "answers", model=bench.plan.models["base"], variant=each)["logits"] for each in variants]
        return {name: float(np.abs(np.subtract(asked[0], asked[-1])).max())}

    bench.attempt([name], until, 0.2, replayed)
    return [EACH_CAPTURED] * (name in bench.found)


def _copies(bench: Bench, until: float) -> dict[str, float | Rounds]:
    """Texts per second of one copy of the model on the device and of two, which share the same batches; and what the second gains."""
    compared, rounds = list(itertools.product(COPIES_ROWS, (1, 2))), bench.plan.rounds
    # Half of the time is for loading and for running each batch once.
    each_s = max(0.02, 0.5 * (until - time.monotonic()) / (len(compared) * rounds))
    rates: dict[str, list[float]] = {}
    for rows, copies in itertools.chain.from_iterable(bench.rng.sample(compared, len(compared)) for _ in range(rounds)):
        name = f"base_sst2_{rows}_rows_{copies}_texts_per_s"
        try:
            asked = {"model": bench.plan.models["base"], "copies": copies, "rows": rows if bench.plan.on_gpu else 4}
            said = bench.inside().ask(until, "share", seconds=each_s, **asked)
            rates.setdefault(name, []).append(said["texts_per_s"])
        except Gone as error:
            bench.not_measured.setdefault(name, str(error))
    found: dict[str, float | Rounds] = {name: median(each) for name, each in rates.items()}
    for rows in COPIES_ROWS:
        one, two = (rates.get(f"base_sst2_{rows}_rows_{copies}_texts_per_s") for copies in (1, 2))
        if one and two:
            found[f"base_sst2_{rows}_rows_copies_gain"] = statistics.median(two) / statistics.median(one)
    return found


def _mix(bench: Bench, mix: str, working: Sequence[str], until: float) -> dict[str, float | Rounds]:
    found = measure_mix(bench, "base", mix, until, ("packed", *working))
    ours = found.get(f"base_{mix}_packed_texts_per_s")
    for variant in working:
        theirs = found.get(f"base_{mix}_{variant}_texts_per_s")
        if isinstance(ours, Rounds) and isinstance(theirs, Rounds):
            found[f"base_{mix}_{variant}_gain"] = theirs.value / ours.value
    return found


def _alone(bench: Bench, variants: Sequence[str], until: float) -> dict[str, float | Rounds]:
    """Milliseconds of one text of 128 tokens."""
    rounds: dict[str, list[float]] = {}
    asked = {"model": bench.plan.models["base"], "rows": 1, "length": 128, "seconds": bench.plan.cell_s}
    for _, variant in itertools.product(range(bench.plan.rounds), variants):
        try:
            child = bench.torch() if variant in ENGINES else bench.inside()
            rounds.setdefault(f"base_128_alone_{variant}_ms", []).append(child.ask(until, "cell", variant=variant, **asked)["ms"])
        except Gone as error:
            bench.not_measured.setdefault(f"base_128_alone_{variant}_ms", str(error))
    return {name: median(each) for name, each in rounds.items() if each}


def verdicts(found: Mapping[str, float]) -> list[str]:
    """The rule applied to each engine, a line each."""
    return [_verdict(found, variant) for variant in ENGINES if f"english_{variant}_golden_error" in found]


def _verdict(found: Mapping[str, float], variant: str) -> str:
    gains = {mix: found[name] for mix in ENGINE_MIXES if (name := f"base_{mix}_{variant}_gain") in found}
    said = [f"{gain:.2f} times packed ({mix})" for mix, gain in gains.items()]
    if (tflops := found.get(f"base_128_{variant}_tflops")) is not None:
        said.append(f"{tflops / PEAK_TFLOPS:.0%} of the fp16 peak")
    error, changed = found[f"english_{variant}_golden_error"], found[f"english_{variant}_changed"]
    said.append(f"golden logits off by {error:.4f}, {changed:.2%} of labels changed")
    gain = gains.get("128", 0.0)
    against = [f"its gain is below {GAIN_MIN:g}"] if gain < GAIN_MIN else []
    against += [f"golden logits may be off by {GOLDEN_ERROR_MAX:g}"] if error > GOLDEN_ERROR_MAX else []
    against += [f"{CHANGED_MAX:.1%} of labels may change"] if changed > CHANGED_MAX else []
    adopted = "adopt it" if gain >= GAIN_AIM else f"adopt it, though the aim is {GAIN_AIM:g}"
    return f"{variant}: {', '.join(said)}: {'not adopted, since ' * bool(against)}{' and '.join(against) or adopted}"
