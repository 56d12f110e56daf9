"""``sentiment-batch IN OUT``: scores a corpus of files, and can resume. Exit codes are those of ``sentiment``."""

import argparse
from collections.abc import Sequence

from sentiment.cli.arguments import TRUNCATIONS, add_effort, add_option, add_parts, add_reading, add_truncation, count, reading_of
from sentiment.cli.exit_codes import DONE, exit_code
from sentiment.errors import BadSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return exit_code(lambda: _run(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sentiment-batch",
        description="Classify a corpus of files on the cores of one machine or of a Ray cluster. To continue "
        "after any interruption, repeat the command.",
    )
    parser.add_argument(
        "input", metavar="IN", help="file, folder or pattern, as a path or any fsspec URI: .txt (one text a line), .csv, .tsv, "
        ".jsonl, .json, .parquet, .xlsx; text also .gz or .zst"
    )  # fmt: skip
    parser.add_argument("output", metavar="OUT", help="folder for Parquet files, as a path or any fsspec URI; new, or from an earlier run")
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="Ray cluster that this machine belongs to, HOST:PORT or auto (default: this machine alone)"
    )
    add_reading(parser, formats=False)
    add_parts(parser)
    parser.add_argument("--keep", action="append", default=[], metavar="NAME", help="column to copy to the output; repeatable")
    parser.add_argument("--model", default="english", metavar="NAME[/VERSION]", help="the model (default: english)")
    parser.add_argument("--bundles", default=None, metavar="FOLDERS", help="folders that hold bundles on every machine, separated by ':'")
    add_truncation(parser, TRUNCATIONS)
    add_effort(parser)
    add_option(
        parser,
        "--processes",
        "--workers",
        dest="workers",
        type=count(100_000),
        default=0,
        metavar="N",
        help="processes, one core each (default: all cores)",
    )
    parser.add_argument(
        "--part-bytes", type=count(2**40), default=0, metavar="N", help="bytes of text scored and written as a unit (default: about 2 MiB)"
    )
    parser.add_argument("--restart", action="store_true", help="delete what an earlier run wrote to OUT, and start over")
    return parser


def _run(options: argparse.Namespace) -> int:
    try:
        # --help works without the packages of the extras, and one machine without Ray.
        from sentiment_tools.corpus.run import run  # noqa: PLC0415
        from sentiment_tools.corpus.workers import this_machine  # noqa: PLC0415

        workers = this_machine()
        if options.ray:
            from sentiment_tools.corpus.cluster import cluster  # noqa: PLC0415

            workers = cluster(options.ray)
    except ModuleNotFoundError as error:
        package, extra = str(error.name).partition(".")[0], "ray" if options.ray else "files"
        raise BadSettings(f"module {package} is missing: run pip install 'sentiment-service[cpu,{extra}]'") from error
    run(options, reading_of(options), workers)
    return DONE
