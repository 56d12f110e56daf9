"""The command line: ``serve``, ``classify`` and the other commands of ``sentiment``.

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 bad bundle, 4 drift (only ``watch --fail-on-drift``); as in a shell after a
signal, 130 interrupted (Ctrl-C; ``top`` ends with 0), 141 the reader of the output has ended.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentiment.cli.arguments import (
    TRUNCATIONS,
    Parser,
    add_command,
    add_credentials,
    add_effort,
    add_input,
    add_option,
    add_output,
    add_parts,
    add_target,
    add_truncation,
    bundles_of,
    names,
    reading_of,
    seconds,
    seconds_or_none,
    share,
)
from sentiment.cli.completion import SHELLS, PrintCompletion
from sentiment.cli.exit_codes import DONE, FAILED, exit_code
from sentiment.cli.health import add_health
from sentiment.cli.models import add_models
from sentiment.cli.version import ShowVersions
from sentiment.errors import BadSettings
from sentiment.explain.methods.registry import METHODS, REGISTRY
from sentiment.files.output import STANDARD_OUTPUT
from sentiment.files.reading import format_of
from sentiment.files.standard_streams import need_standard_output
from sentiment.files.visible import visible
from sentiment.settings import Settings, add_flags, config_file, front_ends_of, load_settings, markdown_table, settings_table
from sentiment.wings import wing

if TYPE_CHECKING:
    from sentiment.client import ExplainOptions

# Commands of sentiment_tools, in the order of the help.
TOOLS = ("loadtest", "plan", "evaluate", "watch", "top")
# The client's values. Parsing a command does not import the client.
AGGREGATIONS = ("maps", "words", "cls_rows", "head_mean", "rollout", "rollout_value_norms", "rollout_gradient")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""

    def run() -> int:
        options = _parser().parse_args(arguments)
        return int(options.run(options))

    return exit_code(run)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="sentiment", description="Serve and call a fine-tuned BERT sentiment classifier.")
    parser.add_argument("--version", action=ShowVersions, help="print the versions of this package and of what it runs with")
    parser.add_argument("--print-completion", action=PrintCompletion, choices=SHELLS, help="print the completion script for a shell")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = add_command(commands, "serve", _serve, "run the server", "Run the server until SIGTERM or Ctrl-C.")
    serve.add_argument("--config", type=Path, default=None, metavar="FILE", help="TOML file with settings (or SENTIMENT_CONFIG)")
    add_flags(serve)

    described = "Classify texts with a running server, or in this process."
    classify = add_command(commands, "classify", _classify, "classify texts", described)
    classify.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="a text; -, or none with a pipe: standard input, one text a line, each answered as it comes",
    )
    add_input(classify)
    classify.add_argument("--pair", default="", metavar="NAME", help="column that holds the second text of a pair")
    add_parts(classify)
    classify.add_argument(
        "--threshold", type=share, default=0.0, metavar="SCORE", help="an answer with a lower score abstains too, such as 0.8 (default: 0)"
    )
    classify.add_argument("--undecided", action="store_true", help="the label of an answer that abstains is undecided")
    add_output(classify)
    classify.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_effort(classify)
    _add_call(classify, TRUNCATIONS)

    described = "Show which words moved the answer, and whether the explanation can be trusted."
    _add_explain(add_command(commands, "explain", _explain, "explain an answer", described))

    described = "Check a bundle's files, and run its golden set on this machine."
    check = add_command(commands, "check", _check, "check a bundle", described)
    check.add_argument("bundle", metavar="BUNDLE", help="bundle folder, or NAME or NAME/VERSION to search for")

    for name in TOOLS:
        _add_tool(commands, name)
    add_models(commands)
    add_health(commands)

    settings = add_command(commands, "settings", _settings, "list the settings", "List every setting of serve with its default.")
    settings.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser


def _add_tool(commands: Any, name: str) -> None:  # Any: argparse names the type of its subparsers in private
    """Add a command of a wing; where that is missing, one that says so."""
    try:
        wing("sentiment.commands", name)(commands)
    except ModuleNotFoundError as error:
        missing = error
        # It takes anything: nothing starts with a NUL.
        command = commands.add_parser(name, help=f"needs module {error.name}, which is missing", add_help=False, prefix_chars="\0")
        command.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)

        def run(_options: argparse.Namespace) -> int:
            raise missing

        command.set_defaults(run=run)


def _add_call(parser: argparse.ArgumentParser, truncations: Sequence[str]) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: colour on a terminal unless NO_COLOR is set (default: auto)",
    )
    where = parser.add_mutually_exclusive_group()
    add_target(where)
    where.add_argument("--local", action="store_true", help="run the bundle in this process, without a server")
    parser.add_argument("--model", default="", metavar="NAME[/VERSION]", help="the model (default: the server's)")
    add_truncation(parser, truncations)
    parser.add_argument("--timeout", type=seconds, default=60.0, metavar="TIME", help="time limit of each call (default: 60s)")
    parser.add_argument(
        "--wait",
        type=seconds_or_none,
        default=None,
        metavar="SECONDS",
        help="seconds to wait at the start for a server that is absent or not ready; 0: none. Default: 30 for a starting server, else 0",
    )
    add_credentials(parser)
    parser.add_argument("--bundles", default=None, metavar="FOLDERS", help="with --local: folders that hold bundles, separated by ':'")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        nargs="?",
        metavar="TEXT",
        help="the text; -, or none with a pipe: standard input, one text a line, each explained by itself",
    )
    add_input(parser)
    parser.add_argument(
        "--by", default="", metavar="NAME", help="with --input: sum up the rows of each value of this column too, by name or number"
    )
    add_output(parser)
    parser.add_argument(
        "--summary", action="store_true", help="the --input is an --output of this command: print its summary again, with another --by"
    )
    parser.add_argument("--pair", default=None, metavar="TEXT", help="the second text of a pair; with --input its column")
    parser.add_argument(
        "--about", default="", metavar="NAME", help="explain the sentiment towards this target, such as battery, which the text names"
    )
    parser.add_argument("--label", default="", help="the label to explain (default: the answer)")
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument(
        "--against",
        default="",
        metavar="LABEL",
        help="explain what speaks for the label rather than for this one (default: none of two labels, of more the likeliest other one)",
    )
    compared.add_argument("--label-alone", action="store_true", help="explain the label's own logit, against no other")
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}; repeatable (default: the model's first)",
    )
    named = {unit: [one.name for one in REGISTRY.values() if one.unit == unit] for unit in ("steps", "orders", "rows")}
    units = [f"{unit} of {' or '.join(names)}" for unit, names in named.items()]
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help=f"{', or '.join(units)} (default: {', '.join(str(one.steps) for one in REGISTRY.values() if one.unit)})",
    )
    parser.add_argument("--counterfactuals", action="store_true", help="find the smallest word sets that change or keep the answer")
    parser.add_argument("--heads", action="store_true", help="show what each attention head does")
    parser.add_argument(
        "--attention", choices=AGGREGATIONS, default=None, metavar="KIND", help=f"show attention: {', '.join(AGGREGATIONS)}"
    )
    add_option(
        parser,
        "--attention-encoding",
        choices=("u8", "fp16", "fp32", "top_p"),
        default="u8",
        help="encoding of attention weights (default: u8)",
    )
    parser.add_argument(
        "--neuron",
        type=_neuron,
        default=None,
        metavar="LAYER,HEAD,TOKEN",
        help="show how a token's attention is computed; all count from 0",
    )
    parser.add_argument("--geometry", action="store_true", help="show which words of the model's golden texts lie closest to each word")
    parser.add_argument("--json", action="store_true", help="print a JSON object; with --input, the summary as one")
    parser.add_argument(
        "--html", type=Path, default=None, metavar="FILE", help="write the full viewer page here (-: standard output); it needs no network"
    )
    parser.add_argument("--sentences", action="store_true", help="answer each sentence too, in the page of --html")
    parser.add_argument(
        "--targets",
        type=names,
        default=(),
        metavar="NAME,NAME",
        help="answer the sentiment towards each of these too, in the page of --html: battery,service",
    )
    _add_call(parser, TRUNCATIONS[:-1])


def _neuron(value: str) -> tuple[int, int, int]:
    try:
        layer, head, token = map(int, value.split(","))
    except ValueError:
        layer = head = token = -1
    if not all(0 <= number < 2**31 for number in (layer, head, token)):
        raise argparse.ArgumentTypeError(f"is {value!r}; must be three numbers from 0, such as 5,0,0")
    return layer, head, token


def _serve(options: argparse.Namespace) -> int:
    # Explanations use one core; further threads of NumPy's would take those of the runners. Before NumPy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from sentiment.doors import open_files  # noqa: PLC0415  # client commands run without a model runtime
    from sentiment.model.cores import cores_granted  # noqa: PLC0415  # client commands run without a model runtime
    from sentiment.observability import logs  # noqa: PLC0415  # client commands run without a model runtime

    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    settings, ignored = load_settings(flags, os.environ, options.config or config_file(os.environ))
    logs.configure_server(settings.log_level, settings.log_format)
    if ignored:
        logs.logger().info("variables_ignored", reason="Kubernetes injects such names", names=ignored)
    open_files.raise_limit()
    if front_ends := front_ends_of(settings, cores_granted()):
        supervise = wing("sentiment.topologies", "front_ends")  # it needs neither gRPC nor the runtime
        return int(supervise(settings.model_copy(update={"front_ends": front_ends})))
    from sentiment.serving import app, event_loop  # noqa: PLC0415  # as above

    event_loop.run(app.serve(settings))
    return DONE


def _classify(options: argparse.Namespace) -> int:
    _quiet_grpc()
    from sentiment.cli.classify import classify  # noqa: PLC0415  # importing gRPC takes 0.1 s, which other commands do not need
    from sentiment.cli.standard_input import STANDARD_INPUT, is_typed, reads_standard_input  # noqa: PLC0415  # as above

    _refuse_file_names(options.texts)
    if options.texts and options.input:
        raise BadSettings("give either texts or --input FILE")
    texts = [STANDARD_INPUT] if options.input == STANDARD_INPUT else options.texts
    file = Path(options.input) if options.input and options.input != STANDARD_INPUT else None
    piped = not file and reads_standard_input(texts, "one or more TEXT, or --input FILE")
    printed = options.output in (None, str(STANDARD_OUTPUT))
    output = None if printed else Path(options.output)
    if output and not (file or piped):
        raise BadSettings("--output needs --input, or - for texts from standard input")
    if options.targets_column and not (file or piped):
        raise BadSettings("--targets-column needs --input, or - for a table from standard input; for texts use --targets")
    for name in ("restart", "overwrite", "escape_formulas"):
        if getattr(options, name) and not output:
            raise BadSettings(f"--{name.replace('_', '-')} needs --output")
    need_standard_output(output)
    options.bundles = bundles_of(options.bundles)
    _log_local(options)
    options.json = options.json or options.output == str(STANDARD_OUTPUT)
    options.texts, options.input, options.output = [] if piped else texts, file, output
    options.reading = reading_of(options)
    options.targets = options.targets_column or options.targets
    return FAILED if classify(options) and not (piped and not output and is_typed()) else DONE


def _refuse_file_names(texts: Sequence[str]) -> None:
    """Refuse texts that are names of files, which would be classified themselves."""
    for text in texts:
        if (format_of(text) and " " not in text) or (Path(text).suffix and os.path.isfile(text)):
            raise BadSettings(f"{text} looks like a file; use --input {text}, or pipe it in to classify its name")


# Options of explain that a file takes alone, and those that it does not take.
_OF_FILES = (
    "by", "output", "summary", "drop", "overwrite", "restart", "escape_formulas", "column", "format", "no_header", "delimiter", "encoding",
    "no_quotes", "sheet",
)  # fmt: skip
_OF_ONE_TEXT = ("text", "counterfactuals", "heads", "attention", "neuron", "geometry", "html", "sentences", "targets")


def _explain(options: argparse.Namespace) -> int:
    _quiet_grpc()
    from sentiment.cli.explain import explain  # noqa: PLC0415  # as above
    from sentiment.cli.standard_input import is_typed, reads_standard_input  # noqa: PLC0415  # as above

    if options.input is not None:
        return _explain_file(options)
    _refuse(options, _OF_FILES, "needs --input FILE")
    if options.html and options.json:
        raise BadSettings("--html and --json cannot both be given")
    if (options.sentences or options.targets) and not options.html:
        raise BadSettings("--sentences and --targets need --html here; sentiment classify prints them")
    piped = reads_standard_input([] if options.text is None else [options.text], "a TEXT, or --input FILE")
    need_standard_output(options.html)
    options.bundles = bundles_of(options.bundles)
    _log_local(options)
    options.options = _requested(options)
    if piped:
        options.text = None
    return FAILED if explain(options) and not (piped and is_typed()) else DONE


def _explain_file(options: argparse.Namespace) -> int:
    from sentiment.cli.explain_file import explain_file, summarize_file  # noqa: PLC0415  # as above
    from sentiment.cli.standard_input import STANDARD_INPUT  # noqa: PLC0415  # as above

    _refuse(options, _OF_ONE_TEXT, "explains one text; leave it out with --input")
    if len(options.method) > 1:
        raise BadSettings("--method: give one with --input")
    if options.against and not options.label:
        raise BadSettings("--against needs --label with --input: the answers of the rows differ, and some may be that label")
    options.input = None if options.input == STANDARD_INPUT else Path(options.input)
    options.output = Path(options.output) if options.output else None
    printed = options.output in (None, STANDARD_OUTPUT)
    for name in ("restart", "overwrite", "escape_formulas", "drop"):
        if getattr(options, name) and (printed or options.summary):
            raise BadSettings(f"--{name.replace('_', '-')} needs --output")
    if options.drop and options.by:
        raise BadSettings("--drop would leave the column of --by out; give one of them")
    if options.summary and (options.output or options.input is None):
        raise BadSettings("--summary needs --input FILE, and no --output")
    need_standard_output(options.output)
    options.reading = reading_of(options)
    if options.summary:
        summarize_file(options)
        return DONE
    options.bundles = bundles_of(options.bundles)
    _log_local(options)
    options.options = _requested(options)
    options.texts, options.pair = [], options.pair or ""
    return FAILED if explain_file(options) else DONE


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse options that were given, by name."""
    for name in names:
        if getattr(options, name) not in (None, False, "", (), "text" if name == "column" else None):
            raise BadSettings(f"{'TEXT' if name == 'text' else '--' + name.replace('_', '-')} {why}")


def _requested(options: argparse.Namespace) -> "ExplainOptions":
    """What is asked of each text.

    Raises:
        BadSettings: an option has no such value.
    """
    from sentiment.client import AttentionOptions, ExplainOptions, NeuronOptions  # noqa: PLC0415  # as in _classify

    kind = options.attention
    attention = AttentionOptions(aggregation=kind, encoding=options.attention_encoding) if kind else None
    requested = ExplainOptions(
        methods=options.method,
        attribution=True,
        steps=options.steps,
        counterfactuals=options.counterfactuals,
        heads=options.heads,
        attention=attention,
        neuron=NeuronOptions(*options.neuron) if options.neuron else None,
        geometry=options.geometry,
        against=options.against,
        label_alone=options.label_alone,
    )
    if options.against and options.against == options.label:
        raise BadSettings(f"--against and --label are both {options.label!r}; name two labels")
    try:
        requested.message()
    except UnicodeEncodeError as error:
        raise BadSettings("--method and --against must be valid UTF-8") from error
    except ValueError as error:
        raise BadSettings(f"--steps {options.steps}: {error}") from error
    return requested


def _quiet_grpc() -> None:
    """Keep gRPC's core, when it is loaded, from writing to standard error what our messages say."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _log_local(options: argparse.Namespace) -> None:
    if options.local:
        from sentiment.observability import logs  # noqa: PLC0415  # only model runs write logs

        logs.configure("warning", "text")  # on standard error: the answers are on standard output


def _check(options: argparse.Namespace) -> int:
    need_standard_output()
    from sentiment.explain.engine import Explainer  # noqa: PLC0415  # only check and serve need the runtime
    from sentiment.model.bundle import bundle_roots, find_bundle  # noqa: PLC0415  # as above
    from sentiment.model.check import check_bundle  # noqa: PLC0415  # as above
    from sentiment.model.classifier import load_classifier  # noqa: PLC0415  # as above

    path = Path(options.bundle)
    if not path.is_dir():
        path = find_bundle(options.bundle, bundle_roots(bundles_of()))
    for line in check_bundle(path):
        print(visible(line))
    classifier = load_classifier(path)
    if classifier.manifest.targets is not None:
        print("answers targets")
    explainer = Explainer(classifier)
    if explainer.load() is not None:
        print("ok    explain graph: golden logits match the manifest, attention sums to 1 and is 0 on padding, all finite")
    elif explainer.failure:
        print(visible(f"BAD   explain graph: {explainer.failure}"))
    print(f"explains by {', '.join(explainer.methods)}")
    return DONE


def _settings(options: argparse.Namespace) -> int:
    need_standard_output()
    rows = settings_table()
    if options.markdown:
        print(markdown_table(rows))
        return DONE
    for variable, flag, default, text in rows:
        print(f"{variable}  {flag}  (default: {default or 'empty'})\n    {text}")
    return DONE
