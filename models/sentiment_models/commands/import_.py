"""``sentiment-models import``, which ``export`` also names."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sentiment_models.commands.arguments import positive, reading_of
from sentiment_models.commands.made_bundle import add_made, findings, identity_of, origin_of, say, serving
from sentiment_models.export.labels import MIXED
from sentiment_models.export.provenance import Facts

if TYPE_CHECKING:
    from sentiment_models.export.export import Exported
    from sentiment_models.export.kinds import Found, Parts

# A mention is mostly judged in its own sentence and the next: reviews have 20 tokens a sentence, and attention costs the square.
TARGET_TOKENS = 128

DESCRIPTION = (
    "Make a bundle from a checkpoint, of train or from elsewhere: weights in int8, an int8 and an fp32 graph, a manifest. Says what it "
    "found, compares both graphs with torch, and single rows with batches; writes no bundle if a check fails. The same checkpoint gives "
    "the same bytes. import and export are the same command: the documentation exports what train made and imports the rest."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="folder of a fine-tuned classifier, such as OUT/best of train, or of an adapter of PEFT; hub:NAME for a model of the Hugging "
        "Face hub, such as hub:org/model",
    )
    add_made(parser)
    parser.add_argument(
        "--tokenizer", default="", metavar="DIR", help="folder of the tokenizer, or hub:NAME (default: CHECKPOINT, or an adapter's base)"
    )
    parser.add_argument(
        "--base",
        default="",
        metavar="NAME",
        help="name of the pre-trained model, for the manifest (default: from training.json); of an adapter, its folder or hub:NAME "
        "(default: from adapter_config.json)",
    )
    parser.add_argument(
        "--embeddings",
        choices=("int8", "fp16", "fp32"),
        default="int8",
        help="precision of int8.onnx's embedding tables (default: %(default)s)",
    )
    parser.add_argument(
        "--beside",
        choices=(MIXED,),
        help="the checkpoint's last label, mixed, is an output beside the labels: whether a text praises and blames. Its threshold is the "
        "lowest with at most 10 %% false alarms among the texts of --dev with one sign, of the kinds (domain) that have mixed ones",
    )
    parser.add_argument(
        "--targets",
        nargs="?",
        type=positive,
        const=TARGET_TOKENS,
        metavar="TOKENS",
        help="the checkpoint was trained on pairs of a text and a target: the bundle answers the sentiment towards targets, from at most "
        f"TOKENS tokens around their mention (default: {TARGET_TOKENS})",
    )
    parser.add_argument(
        "--spellings",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="texts, .txt with one per line or a labelled file: correct misspelled words to words that are frequent in them (default: the "
        "base bundle's corrections, if the checkpoint was trained from one)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.export.adapters import parts_of
    from sentiment_models.export.folders import refuse_replacing
    from sentiment_models.export.kinds import recognise
    from sentiment_models.training.bases import TRAINING_FILE, folder_of, name_of

    out = arguments.out.resolve()
    identity_of(arguments)
    # Before anything is downloaded or merged.
    refuse_replacing(out, force=arguments.force)
    folder = Path(folder_of(arguments.checkpoint))
    with parts_of(folder, arguments.base, arguments.tokenizer, say) as parts:
        found = recognise(parts, arguments.labels)
        for line in found.lines:
            say(line)
        trained_here = (folder / TRAINING_FILE).is_file()
        name = "" if trained_here else name_of(arguments.checkpoint)
        origin = origin_of(checkpoint=name, licence=found.licence, note=arguments.note)
        # What train made gets its card once it is evaluated.
        exported = _export(arguments, out, parts, found, origin, card=not trained_here)
    _print_measured(exported, found.labels)
    for path in sorted(out.iterdir()):
        print(f"{path.name:20} {path.stat().st_size / 1e6:8.2f} MB")
    print(serving(out))


def _export(arguments: argparse.Namespace, out: Path, parts: "Parts", found: "Found", origin: Facts, *, card: bool) -> "Exported":
    from sentiment_models.data.labelled import read_examples
    from sentiment_models.export.export import export
    from sentiment_models.export.inherited import inherited_of

    inherited, reading = inherited_of(parts.model), reading_of(arguments)
    pairs = arguments.pairs or (inherited is not None and inherited.pairs)
    second_texts = pairs or bool(arguments.targets or (inherited and inherited.targets))
    dev = list(read_examples(arguments.dev, found.labels, pairs=second_texts, reading=reading)) if arguments.dev else None
    name, version = identity_of(arguments)
    return export(
        parts.model,
        out,
        name=name,
        version=version,
        dev=dev,
        base=parts.base or None,
        embeddings=arguments.embeddings,
        pairs=pairs,
        mixed=bool(arguments.beside),
        targets=arguments.targets,
        max_tokens=arguments.max_tokens,
        spellings=arguments.spellings,
        texts=arguments.texts,
        reading=reading,
        labels=found.labels,
        tokenizer=parts.tokenizer,
        origin=origin,
        card=card,
        force=arguments.force,
        say=say,
    )


def _print_measured(exported: "Exported", labels: Sequence[str]) -> None:
    for precision, parity in exported.parity.items():
        moved = exported.movement[precision].probability_max
        print(
            f"{precision}: differs from torch by at most {parity.logit_error_max:.2g} in logits and {parity.probability_error_mean:.2g} in "
            f"mean probability; batch mates change a probability by at most {moved:.2g}"
        )
    found, golden = exported.calibration, exported.golden.entries
    low, high = found.interval or (found.temperature, found.temperature)
    guess = "no base" if exported.base_temperature is None else f"the base's: {exported.base_temperature:.3f}"
    sure = f" (with {guess}, 95 % sure: {low:.2f} to {high:.2f})" if found.interval else ""
    print(f"temperature {found.temperature:.3f}{sure}, abstain below {found.abstain_below:.3f}; {len(golden)} golden texts")
    for line in findings(found, golden, labels):
        print(line)
    if found.mixed:
        print(
            f"mixed from {found.mixed.at:.4f}: {found.mixed.found} of {found.mixed.texts} mixed development texts, and "
            f"{found.mixed.alarms} of {found.mixed.one_sign} of one sign"
        )
