"""``sentiment-models effort``."""

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path

from sentiment.files.standard_streams import need_standard_output
from sentiment_models.commands.arguments import add_figures, add_reading, add_session_threads, positive, reading_of, write_figures
from sentiment_models.errors import ModelsError
from sentiment_models.reports.report import check_writable

DESCRIPTION = (
    "Set a bundle's rule of adaptive effort: of which texts a part suffices. The rule is set on one half of each domain's texts and "
    "proved on the other, or on those of --proof: with 95 % confidence at most the share that is called bound gets another answer than "
    "reading in full gives. A rule is recorded if it is at most 1 % in each domain."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument(
        "domains",
        nargs="*",
        type=_domain,
        metavar="DOMAIN=FILE",
        help="texts of a domain that the model was not trained on, in any form that reference takes; a domain may have several files",
    )
    parser.add_argument("--head", type=positive, default=32, metavar="TOKENS", help="first tokens of the part (default: 32)")
    parser.add_argument("--tail", type=positive, default=64, metavar="TOKENS", help="last tokens of the part (default: 64)")
    parser.add_argument(
        "--from", type=positive, default=135, dest="tokens_min", metavar="TOKENS", help="shorter texts are read in full (default: 135)"
    )
    parser.add_argument(
        "--differ",
        type=_share,
        default=0.0035,
        metavar="SHARE",
        help="of each domain's texts that set the rule, that may get another answer (default: 0.0035)",
    )
    parser.add_argument(
        "--proof",
        type=_domain,
        action="append",
        default=[],
        metavar="DOMAIN=FILE",
        help="prove the rule on these texts, and set it on all others of the domain; repeatable",
    )
    add_session_threads(parser)
    add_figures(parser, report="")
    parser.add_argument("--record", action="store_true", help="write the rule into the bundle's manifest, which changes its digest")
    parser.add_argument("--remove", action="store_true", help="remove the rule from the manifest, and do nothing else")
    add_reading(parser, pairs=False)


def _share(value: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (found := float(value)) <= 1:
            return found
    raise argparse.ArgumentTypeError(f"must be a share from 0 to 1, such as 0.0035, got {value!r}")


def _domain(value: str) -> tuple[str, Path]:
    name, separator, file = value.partition("=")
    if not (name and name == name.strip() and name.isprintable() and separator and file):
        raise argparse.ArgumentTypeError(f"must be DOMAIN=FILE, got {value!r}")
    return name, Path(file)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.evaluation.effort import Texts, measure_effort, record_effort, table

    if bool(arguments.domains) is arguments.remove:
        raise ModelsError("give DOMAIN=FILE, or --remove alone")
    if arguments.remove:
        record_effort(arguments.bundle, None)
        return
    domains, proof = _by_name(arguments.domains), _by_name(arguments.proof)
    if unknown := proof.keys() - domains.keys():
        raise ModelsError(f"--proof {min(unknown)}=FILE: no texts of this domain set the rule; the domains are {', '.join(domains)}")
    need_standard_output(arguments.json, arguments.record)
    check_writable(json=arguments.json)
    texts = Texts(domains, proof, reading_of(arguments))
    part = (arguments.head, arguments.tail, arguments.tokens_min)
    found = measure_effort(arguments.bundle, texts, part, arguments.differ, arguments.threads)
    write_figures(arguments, found, table(found))
    if arguments.record:
        record_effort(arguments.bundle, found, texts.files)


def _by_name(given: Sequence[tuple[str, Path]]) -> dict[str, list[Path]]:
    named: dict[str, list[Path]] = {}
    for name, file in given:
        named.setdefault(name, []).append(file)
    return named
