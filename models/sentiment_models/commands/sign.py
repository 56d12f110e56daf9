"""``sentiment-models sign``."""

import argparse
from pathlib import Path

from sentiment.files.output import beside
from sentiment_models.commands.arguments import add_output

DESCRIPTION = (
    "Sign a bundle's manifest, and so every file that it lists, like cosign sign-blob with a key: ECDSA P-256 over SHA-256. "
    "Check it with cosign verify-blob or sentiment-models verify --signature."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle folder")
    parser.add_argument(
        "--key", required=True, type=Path, metavar="FILE", help="P-256 private key in PEM; set COSIGN_PASSWORD for an encrypted one"
    )
    add_output(parser, "signature to write; -: standard output (default: BUNDLE.sig beside the folder)", metavar="FILE", default=None)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from sentiment_models.export.signature import sign

    out = sign(arguments.bundle, arguments.key, arguments.out)
    manifest = arguments.bundle / "manifest.json"
    check = f"cosign verify-blob --key PUBLIC_KEY --signature {out} --insecure-ignore-tlog {manifest}"
    print(f"{out}\nto check it: {check}", file=beside(out))
