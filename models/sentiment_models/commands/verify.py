"""``sentiment-models verify``."""

import argparse
from pathlib import Path

from sentiment.errors import BadBundle
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible
from sentiment_models.errors import ModelsError

DESCRIPTION = (
    "Check everything in a bundle, one line per check: hashes, missing or extra files, tokenizer and configuration against the manifest, "
    "operators and references of every graph, the golden set in every graph and in torch on the bundle's weights, the model card. "
    "Exit code 3 if a check fails. What needs torch is left out without it, in a line that says so."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument("--signature", type=Path, metavar="FILE", help="also check this signature, from sign or cosign sign-blob")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the signer's public key in PEM, such as cosign.pub")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.export.examine import examine

    if (arguments.signature is None) != (arguments.key is None):
        raise ModelsError("--signature needs --key" if arguments.signature else "--key needs --signature")
    need_standard_output()
    failed = []
    for check in examine(arguments.bundle, arguments.signature, arguments.key):
        print(visible(check.line), flush=True)
        if check.good is False:
            failed.append(check.name)
    if failed:
        raise BadBundle(f"{arguments.bundle}: {len(failed)} checks failed: {', '.join(failed)}")
