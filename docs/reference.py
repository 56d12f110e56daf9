"""Writes docs/reference/, the diagrams of architecture.md, the runs of peers.md and what else is made of the code: ``make reference``.

Each page is a function from the code to Markdown; what the code cannot say (when a status occurs, what a label's value means) stands here,
and a name without its words, or words without their name, stop the writing.
"""

import argparse
import ast
import inspect
import json
import re
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import grimp
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

import sentiment.client
from docs.blocking import MADE, SOURCE, blocking
from docs.openapi import openapi
from sentiment.call.calls import CODE_NAMES
from sentiment.call.names import METHODS
from sentiment.call.status import CODES, HTTP_STATUS, Code
from sentiment.cli.main import _parser as sentiment_parser
from sentiment.client.policy import RETRIES, SERVICE_CONFIG
from sentiment.errors import RequestError
from sentiment.explain import wording
from sentiment.explain.methods.registry import REGISTRY, Method
from sentiment.explain.thread import TIMED
from sentiment.observability.drift import Signal
from sentiment.observability.metrics import Metrics, ShadowMetrics
from sentiment.settings import Settings, markdown_table, settings_table
from sentiment_models.cli import COMMANDS
from sentiment_models.cli import _parser as models_parser
from sentiment_tools.commands.batch import _parser as batch_parser
from tests.bench.peers.table import from_json, to_summary

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PROTO = "sentiment/v1/sentiment.proto"
ARCHITECTURE = DOCS / "internals/architecture.md"
PEERS = DOCS / "internals/peers.md"
VIEWER = ROOT / "service/sentiment_viewer/assets"
OPENAPI = ROOT / "service/sentiment/doors/http/openapi.json"
SERVICE_CONFIG_JSON = ROOT / "proto/sentiment/v1/service_config.json"
HEAD = "<!-- Made by docs/reference.py of the code; change that. -->\n\n"
SCRIPT_HEAD = "// Made by docs/reference.py of the code; change that.\n"
END = "<!-- end -->"
COLUMNS = 100

# Who calls whom in a Classify call, in its order.
WAY = (
    ("sentiment.doors.grpc.accepting", "sentiment.doors.grpc.handlers"),
    ("sentiment.doors.grpc.handlers", "sentiment.call.calls"),
    ("sentiment.doors.grpc.handlers", "sentiment.doors.grpc.receiving"),
    ("sentiment.call.calls", "sentiment.call.servicer"),
    ("sentiment.call.servicer", "sentiment.lifecycle.registry"),
    ("sentiment.call.servicer", "sentiment.call.convert"),
    ("sentiment.call.servicer", "sentiment.pipeline.served"),
    ("sentiment.pipeline.served", "sentiment.pipeline.queries"),
    ("sentiment.pipeline.served", "sentiment.model.tokenizer"),
    ("sentiment.pipeline.served", "sentiment.batching.row_queue"),
    ("sentiment.batching.row_queue", "sentiment.batching.batcher"),
    ("sentiment.batching.batcher", "sentiment.batching.scheduler"),
    ("sentiment.batching.batcher", "sentiment.model.runner"),
    ("sentiment.model.runner", "sentiment.model.classifier"),
    ("sentiment.pipeline.served", "sentiment.model.classifier"),
    ("sentiment.model.classifier", "sentiment.model.session"),
    ("sentiment.model.classifier", "sentiment.model.scores"),
    ("sentiment.pipeline.served", "sentiment.pipeline.after_answer"),
    ("sentiment.call.calls", "sentiment.call.status"),
)
WINGS = ("sentiment_front_ends", "sentiment_viewer", "sentiment_tools", "sentiment_models")
# Each is drawn apart from its folder: it knows more than its neighbours may.
APART = ("sentiment.serving.app", "sentiment.local", "sentiment.offline")
# Its folders are drawn apart from each other.
DIVIDED = "doors"
GENERATED = ("v1", "oip")
# What clients inherit their calls from.
CALLS = ("sentiment.client.async_calls", "sentiment.client.calls")

BACKOFF = f"0 to {RETRIES.first_s * 1000:g} ms at random, doubling with each attempt"
RETRY_PUSHBACK = "yes, after the pushback; if it is -1, only with a longer deadline"
STATUS: dict[Code, tuple[str, str, str]] = {
    Code.OK: ("The call is answered. Items of a batch or stream have a status each.", "-", "-"),
    Code.CANCELLED: (
        "You cancelled the call. If you did not: the server stops, or more calls wait than it can look at (`calls_pending_max`).",
        "yes, if you did not cancel",
        BACKOFF,
    ),
    Code.INVALID_ARGUMENT: (
        "The request is wrong: an empty or all-white-space text, nothing the model reads (control "
        "characters), over a limit, an unknown enum "
        "value, malformed bytes, bad UTF-8. `google.rpc.BadRequest` names field, value and limit.",
        "no",
        "-",
    ),
    Code.UNAUTHENTICATED: ("The call has no valid bearer token and the server wants one (`auth_tokens`).", "no; renew the token", "-"),
    Code.NOT_FOUND: ("No model of this name and version is loaded, or the journal has no answer that feedback names.", "no", "-"),
    Code.PERMISSION_DENIED: (
        "HTTP only. 403: a web page of an origin that `cors_origins` does not name sends a POST. 421: the header `Host` has a name that "
        "`http_hosts` does not.",
        "no",
        "-",
    ),
    Code.FAILED_PRECONDITION: (
        "The model cannot do that, such as read a pair or give gradients without an explain graph; or the server does not explain, or "
        "keeps no journal for feedback (`journal`).",
        "no",
        "-",
    ),
    Code.RESOURCE_EXHAUSTED: (
        "The work ahead leaves no time before the deadline, the queue is full (`queue_rows_max`), too many "
        "calls are open (`calls_max`), the requests of "
        "this connection hold too many bytes (`request_bytes_max`), too many "
        "explanations wait (`explain_calls_max`) or leave this one too little time, the reader of an explanation is too slow, or 64 "
        "searches for answers that feedback names wait.",
        RETRY_PUSHBACK,
        "`RetryInfo` and `grpc-retry-pushback-ms`; -1: not within this deadline",
    ),
    Code.UNIMPLEMENTED: (
        "The contract has it and this version does not: `explain` in ClassifyBatch and ClassifyStream. Also "
        "a compressed message (`grpc_compression`; gRPC's core answers it, and the server counts CANCELLED), and a method that the server "
        "does not have.",
        "no",
        "-",
    ),
    Code.DEADLINE_EXCEEDED: (
        "The answer was not ready by the deadline, the deadline is too near even for an idle server, or the request did not arrive within "
        "`receive_s_max`.",
        "only with a later deadline",
        "at once",
    ),
    Code.UNAVAILABLE: (
        "The server starts or drains, its last runner or device is lost, the journal that feedback needs cannot be read, or the connection "
        "went away.",
        "yes, on another server if there is one",
        f"{BACKOFF}, at most {RETRIES.most_s:g} s",
    ),
    Code.INTERNAL: (
        "A fault of the server's. Its log has the cause under the request id of the trailer `x-request-id`.",
        "no",
        "-",
    ),
}

# By metric, label and value: what the value means.
VALUES: dict[tuple[str, str], dict[str, str]] = {
    ("stage_seconds", "stage"): {
        "receive": "from the call's arrival to its parsed query",
        "tokenize": "text to token ids",
        "queue": "waiting for a runner",
        "plan": "the scheduler's decision, once a batch",
        "pad": "laying out a batch",
        "copy": "to and from the device, on a GPU",
        "run": "the model",
        "score": "logits to probabilities",
        "send": "serialising the answer",
    },
    ("observer_failures", "observer"): {
        "outcome": "how a text ended",
        "answer": "what was answered: label, probability, tokens",
        "drift": "unknown words, texts in another language, drift",
        "batch": "a batch",
        "call": "how a call ended: its counts, span and log line",
        "explanation": "the parts of an explanation",
        "journal": "the journal",
        "sample": "shadow scoring and hidden states",
        "trace": "spans",
        "counts": "what front ends count",
    },
    ("batches", "reason"): {
        "full": "it has as many rows as pay",
        "alike": "no further row of like length waited",
        "spread": "it was halved for a runner that would have been idle",
        "tight": "a deadline allowed no more rows",
        "retry": "rows of a batch that failed run again",
        "wide": "no other row waited, so it used the cores of idle runners too",
    },
    ("own_fault", "reason"): {
        "deadline": "when the call arrived, its deadline was over, or nearer than `deadline_margin_s` or the time that a text alone needs",
        "share": "its caller, the name of a token, asked for more than its share while another stayed within its own",
    },
    ("refused", "reason"): {
        "queue_full": "`queue_rows_max` rows wait",
        "backlog": "the work ahead leaves no time before the deadline",
        "deadline": "too near even for an idle server",
        "unavailable": "the server starts or drains, or no runner is left",
        "explanations": "too many wait, others leave it too little time, it gave way to another caller's, or its reader is too slow",
    },
    ("dropped", "reason"): {
        "cancelled": "the caller left",
        "expired": "the deadline came while the row waited",
        "hopeless": "too little time was left for a run",
    },
    ("wasted_rows", "reason"): {
        "abandoned": "the row's caller had left when its run ended",
        "failed": "the run failed",
    },
    ("deadline_outcome", "outcome"): {
        "met": "answered in time",
        "expired": "the deadline came first",
        "refused": "not admitted",
        "cancelled": "the caller left",
        "failed": "the model could not compute the text",
    },
    ("predictions", "abstained"): {
        "false": "the probability is at least the model's `abstain_below`",
        "true": "it is below, so the answer is marked `abstain`",
    },
    ("predictions", "priority"): {
        "interactive": "a person waits; the default of one text",
        "bulk": "a program scores many; the default of batches and streams",
    },
    ("drift", "signal"): {
        "label": "the winning label",
        "abstained": "whether the answer abstains",
        "score": "the probability of the winning label",
        "tokens": "tokens read of a text",
        "unknown": "share of these that are not in the vocabulary",
        "fragments": "share of fragments among the first words and fragments; with a WordPiece tokenizer",
        "hidden_1": "a projection of hidden states, up to `hidden_8`; with `hidden_drift_share`",
    },
    ("shadow_shift", "direction"): {"up": "the other version gives it a higher probability", "down": "a lower one"},
    ("hidden_drift_dropped", "reason"): {
        "queue_full": "too many texts of the sample wait",
        "failed": "the explain graph failed on the text",
    },
    ("effort_audits", "differs"): {"false": "reading in full gives the same answer", "true": "it gives another one"},
    ("effort_audits_dropped", "reason"): {
        "queue_full": "too many texts of the sample wait",
        "failed": "the graph failed on the text",
    },
    ("effort_differs", "end"): {"low": "the least share that is plausible", "high": "the greatest"},
    ("known_rows", "how"): {"kept": "from the memory of answers", "shared": "with an equal row that was under way"},
    ("shadow_dropped", "reason"): {
        "queue_full": "too many texts of the sample wait",
        "failed": "the other version refused or failed the text",
    },
    ("feedback", "right"): {"false": "the right label is another, or none is right", "true": "it is the answer's"},
    ("feedback", "abstained"): {"false": "the answer was sure enough", "true": "the answer was marked `abstain`"},
    ("tokens", "kind"): {"real": "tokens of texts", "padded": "padding"},
    ("trace_spans_dropped", "reason"): {"queue_full": "too many waited", "not_exported": "the collector did not take them"},
    ("model_changes", "change"): {
        "loaded": "a version was loaded and proved",
        "failed": "a version was refused",
        "used": "a version was put to use",
        "unloaded": "a version was unloaded",
    },
    ("http_connections_closed", "reason"): {
        "waiting": "it had waited longest for a request when a new one came",
        "new": "it came when requests of all others were being answered",
    },
    ("reload_failures", "files"): {"tls": "certificates and keys", "tokens": "bearer tokens", "settings": "the settings file"},
    ("unauthenticated", "transport"): {"grpc": "gRPC", "http": "HTTP"},
}


def cell(text: str) -> str:
    """A text as one cell of a table, which raw HTML and bars would break."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("``", "`")


def wrapped(text: str) -> str:
    """Markdown with its paragraphs and list items filled to COLUMNS; tables, headings, comments and code stay as they are."""
    done: list[str] = []
    block: list[str] = []
    coded = False

    def flush() -> None:
        if block:
            mark = re.match(r"\s*(?:- |\d+\. )?", block[0])
            first = mark[0] if mark else ""
            # What would begin a list or a heading at the beginning of a line stays with the word before it.
            words = re.sub(r" (?=(?:[-+*>#]+|\d+[.)]) )", "\0", " ".join(line.strip() for line in [block[0][len(first) :], *block[1:]]))
            filled = textwrap.wrap(words, COLUMNS - len(first), break_long_words=False, break_on_hyphens=False)
            done.extend((" " * len(first) if place else first) + line.replace("\0", " ") for place, line in enumerate(filled))
            block.clear()

    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        if coded or fence or not line.strip() or line.startswith(("|", "#", "<!--", "![")):
            flush()
            done.append(line.rstrip() if not coded else line)
            coded ^= fence
        else:
            if re.match(r"\s*(?:- |\d+\. )", line):
                flush()
            block.append(line)
    flush()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(done)) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def settings_page() -> str:
    """Every setting of the server."""
    return (
        "# Settings\n\nFor operators: every setting of `sentiment serve`. Look up a name, its default and what it does.\n\n"
        "Each setting is a flag, an environment variable, and a key of the TOML file that `--config` "
        "(or\n`SENTIMENT_CONFIG`) names; the key is"
        " the flag without dashes in front and with `_` for `-`. Flags win over the\nenvironment, the "
        "environment over the file. An unknown"
        " `SENTIMENT_*` variable stops the start and names the nearest\nknown one. "
        "[Configuration](../operate/configuration.md) says how to"
        " choose values.\n\n" + markdown_table(settings_table()) + "\n"
    )


def cli_page() -> str:
    """Every command with its arguments."""
    text = (
        "# Command line\n\nFor everyone who types: the commands of `sentiment`, `sentiment-batch` and "
        "`sentiment-models`, and their arguments.\n\n"
        "Exit codes of all three: 0 done, 1 failed, 2 wrong usage or settings, 3 bad bundle.\n"
        "`sentiment` and `sentiment-batch` also exit with 130 after Ctrl-C, and with 141 if the reader of "
        "their output has ended.\n`sentiment watch --fail-on-drift` exits with 4 if a signal drifted.\n"
    )
    text += "".join(_command(sentiment_parser())) + "".join(_command(batch_parser()))
    parser = models_parser("")
    text += f"\n## {parser.prog}\n\n{parser.description} Training and export need the extra `models`; "
    text += "[Install](../operate/install.md#as-a-package) names those of the other commands.\n"
    for name in COMMANDS:
        (commands,) = [action for action in models_parser(name)._actions if isinstance(action, argparse._SubParsersAction)]
        text += "".join(_command(commands.choices[name], level=3))
    return text


def _command(parser: argparse.ArgumentParser, level: int = 2) -> Iterator[str]:
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    nested = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    yield f"\n{'#' * level} {parser.prog}\n\n{parser.description or ''}\n"
    rows = [
        (_name(action), _said(parser, action)) for action in actions if action not in nested and action.dest not in Settings.model_fields
    ]
    if any(action.dest in Settings.model_fields and action.default is argparse.SUPPRESS for action in actions):
        yield "\nEach [setting](settings.md) is a flag too.\n"
    elif rows_of_settings := [action for action in actions if action.dest in Settings.model_fields]:
        rows += [(_name(action), _said(parser, action)) for action in rows_of_settings]
    if rows:
        yield "\n" + table(["argument", "what it is"], rows)
    for action in nested:
        for command in action.choices.values():
            yield from _command(command, level + 1)


def _name(action: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    named = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    value = "" if action.nargs == 0 else named
    if not action.option_strings:
        return f"`{value}`" + (" ..." if action.nargs in ("*", "+") else "")
    shown = ", ".join(f"`{option}`" for option in action.option_strings)
    return shown + (f" `{value}`".replace("|", r"\|") if value and not isinstance(action, argparse.BooleanOptionalAction) else "")


def _said(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    told = parser._get_formatter()._expand_help(action) if action.help else ""
    needed = "; needed" if action.required and action.option_strings else ""
    return cell(told + needed)


def metrics_page() -> str:
    """Every metric, from a registry in which a model, a GPU and a certificate are watched."""
    metrics = Metrics(CODE_NAMES)
    signals = [Signal.of_values(name, {"": ""}, {"reviews": [1]}) for name in VALUES["drift", "signal"]]
    model = metrics.model("english/2", ["cpu-0"], ["positive"], signals[:-1], signals[-1:])
    model.describe(0, 0.0, name="", version="", digest="", precision="", provider="")
    model.watch_queue(float, float, float)
    model.watch_explanations(float)
    for method in METHODS:
        _ = model.of[method]
    for part in TIMED:
        _ = model.explain_seconds[part]
    model.watch_effort(float, float, float)
    model.watch_known(float)
    ShadowMetrics(metrics, ("english/2", "english/3"), ["negative", "positive"])
    metrics.build_info.info({"version": "", "onnxruntime": ""})
    metrics.loop_busy_seconds.watch(float, "server")
    metrics.watch_devices({"cuda:0": _Silent()})
    metrics.watch_certificate(float)
    metrics.count_callers(())
    lines = metrics.log_lines_dropped, metrics.journal_lines, metrics.journal_lines_dropped
    for counted in (*lines, metrics.grpc_calls_started, metrics.grpc_calls_ended):
        counted.watch(float)
    rows, values = [], []
    for family in sorted(metrics.registry.collect(), key=lambda family: family.name):
        short = family.name.removeprefix("sentiment_")
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = list(dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le"))
        # Each is there from the start, or was touched above.
        assert family.samples, f"{family.name} has no series here, so that its labels are not known"
        rows.append((f"`{family.name}{suffix}`", family.type, ", ".join(f"`{label}`" for label in labels), cell(family.documentation)))
        for label in labels:
            found = {sample.labels[label] for sample in family.samples if label in sample.labels}
            meant = VALUES.get((short, label))
            if meant is not None:
                assert found == set(meant), f"{short}: {label} takes {sorted(found)}; docs/reference.py explains {sorted(meant)}"
                values += [(f"`{family.name}{suffix}`", f"`{label}`", f"`{value}`", text) for value, text in meant.items()]
    return (
        "# Metrics\n\nFor operators: every metric that `/metrics` shows. Look up what to plot, alert and scale on;\n"
        "[observability](../operate/observability.md) says how.\n\n"
        "Every series of a loaded model is there from the start, at zero; those of shadow scoring come with "
        "the first text. Histograms have `_bucket`, `_sum` and `_count`. The process's own\n"
        "metrics (`process_*`, `python_info`, `python_gc_*`) stand beside them. Series of devices are there "
        "with a GPU (and `nvidia-ml-py`),\n"
        "that of the certificate with TLS, those of callers with tokens, "
        "those of drift for models whose bundle has references, and the gauges of "
        "effort for those whose bundle has a rule.\n\n" + table(["metric", "type", "labels", "what it is"], rows) + "\n## Label values\n\n"
        "`model` is `name/version` of a loaded model, and empty where a request named none. `method` is the rpc: "
        + ", ".join(f"`{name}`" for name in METHODS)
        + ".\nOf `explain_seconds` it is the part of the explanation. `code` is a [status code](status-codes.md): "
        + ", ".join(f"`{name}`" for name in CODE_NAMES)
        + ".\n`caller` is the name of a token, or `unnamed`. "
        "`label` is one of the model's. `runner` is `cpu-0` and so on, or a device such as `cuda:0`; `process` is `server`, or with "
        "front ends `executor` and each front end.\n\n" + table(["metric", "label", "value", "meaning"], values)
    )


class _Silent:
    """A device that tells nothing."""

    def memory_bytes(self) -> float:
        """Nothing."""
        return 0.0

    def busy_ratio(self) -> float:
        """Nothing."""
        return 0.0


def status_page() -> str:
    """The status codes: from the table of the service, with when each occurs and what to do."""
    used = {Code.OK, Code.CANCELLED, Code.PERMISSION_DENIED, *CODES.values()}
    assert used == set(STATUS), f"docs/reference.py explains {sorted(code.name for code in STATUS)}"
    rows = [
        (f"`{code.name}`", str(code.value[0]), str(HTTP_STATUS.get(code, "403, 421")), *map(str, STATUS[code]))
        for code in sorted(used, key=lambda code: code.value[0])
    ]
    causes = [(f"`{code.name}`", f"`{error.__name__}`", cell((inspect.getdoc(error) or "").split("\n\n")[0])) for error, code in _errors()]
    return (
        "# Status codes\n\nFor everyone who calls the service: what each status means, whether to retry, and after how long.\n\n"
        + table(["gRPC status", "number", "HTTP", "when", "retry", "wait"], rows)
        + "\n## How the server tells you when to retry\n\n"
        "A refused call (`RESOURCE_EXHAUSTED`) carries the predicted wait twice: as `google.rpc.RetryInfo` "
        "in the status details, and in\n"
        "milliseconds in the trailer `grpc-retry-pushback-ms`, which gRPC clients with a retry policy obey "
        "by themselves. The trailer is `-1`\n"
        "where no retry can be in time, as for most calls that are refused for their deadline. Over HTTP it "
        "is the header `Retry-After`, in\n"
        "whole seconds. Set `proto/sentiment/v1/service_config.json` as your client's service config: at "
        "most 4 attempts on `UNAVAILABLE` and\n"
        "`RESOURCE_EXHAUSTED`, for every method but `Explain` and `ClassifyStream`; `sentiment.client` has it already. All methods but\n"
        "`ClassifyStream` are idempotent, so a retry is safe.\n\n"
        "## Batches and streams\n\nA bad item has a status of its own and leaves the others alone: in "
        "ClassifyBatch and ClassifyStream it is a\n"
        "`google.rpc.Status` in place of the item's answer. A call fails as a whole only if its envelope is "
        "wrong. A ModelInfer of the Open\n"
        "Inference Protocol fails as a whole with its first failing text.\n\n"
        "## Errors over HTTP\n\n"
        'The body is `{"error": {"status": "INVALID_ARGUMENT", "code": 3, "message": ..., "details": [...]}}`. A stream of lines (`POST\n'
        "/v1/explain`) that fails after its first line has the error as its last line, under status 200.\n\n"
        "## Where each status comes from\n\nThe server maps each of its errors (`errors.py`) to one status, "
        "in `call/status.py` and nowhere else.\n\n" + table(["gRPC status", "error", "what it is"], causes)
    )


def _errors() -> list[tuple[type[RequestError], Code]]:
    return sorted(CODES.items(), key=lambda item: item[1].value[0])


def contract() -> FileDescriptorProto:
    """The proto file with its comments."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "set"
        known = Path(protoc.__file__).parent / "_proto"
        command = ["protoc", f"-I{ROOT / 'proto'}", f"-I{known}", "--include_source_info", f"--descriptor_set_out={output}", PROTO]
        if protoc.main(command):
            raise RuntimeError(f"protoc refuses {PROTO}")
        (file,) = FileDescriptorSet.FromString(output.read_bytes()).file
    return file


def api_page() -> str:
    """The contract, from the comments of the proto file."""
    return "".join(_api(contract()))


def _api(file: FileDescriptorProto) -> Iterator[str]:
    comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
    intro = textwrap.dedent(comments[12,])
    yield (
        f"# API\n\nFor everyone who calls the service over gRPC or JSON: each method, message and field of `{file.package}`, as\n"
        f"`proto/{PROTO}` states it. JSON over HTTP has the same names. [Status codes](status-codes.md) says when to retry.\n\n"
        f"```text\n{intro.strip()}\n```\n"
    )
    for number, service in enumerate(file.service):
        yield f"\n## {service.name}\n\n{_prose(comments.get((6, number), ''))}\n"
        for place, method in enumerate(service.method):
            sides = [
                ("stream " if streams else "") + _linked(kind)
                for streams, kind in ((method.client_streaming, method.input_type), (method.server_streaming, method.output_type))
            ]
            yield f"\n### {method.name}\n\n{sides[0]} to {sides[1]}\n\n{_prose(comments[6, number, 2, place])}\n"
    yield "\n## Messages\n"
    for number, message in enumerate(file.message_type):
        yield from _message(message, (4, number), comments)
    yield "\n## Enums\n"
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, (5, number), comments)


def _message(message: DescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str]) -> Iterator[str]:
    yield f"\n### {message.name}\n\n{_prose(comments.get(path, ''))}\n"
    rows = []
    for place, field in enumerate(message.field):
        one_of = (
            f"one of `{message.oneof_decl[field.oneof_index].name}`. "
            if field.HasField("oneof_index") and not field.proto3_optional
            else ""
        )
        said = one_of + cell(comments.get((*path, 2, place), ""))
        rows.append((str(field.number), f"`{field.name}`", _kind(message, field), said))
    if rows:
        yield "\n" + table(["number", "field", "type", "what it is"], rows)


def _enum(enum: EnumDescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str]) -> Iterator[str]:
    yield f"\n### {enum.name}\n\n{_prose(comments.get(path, ''))}\n\n"
    yield table(
        ["number", "value", "what it is"],
        [(str(value.number), f"`{value.name}`", cell(comments.get((*path, 2, place), ""))) for place, value in enumerate(enum.value)],
    )


def _prose(comment: str) -> str:
    return "\n".join(line.strip() for line in comment.strip().splitlines()).replace("<", "&lt;")


def _kind(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    kinds = FieldDescriptorProto.Type
    entry = next((nested for nested in message.nested_type if field.type_name.endswith(f".{message.name}.{nested.name}")), None)
    if entry is not None:
        key, value = (kinds.Name(part.type).removeprefix("TYPE_").lower() for part in entry.field)
        return f"map of {key} to {value}"
    named = field.type in (kinds.TYPE_MESSAGE, kinds.TYPE_ENUM)
    kind = _linked(field.type_name) if named else kinds.Name(field.type).removeprefix("TYPE_").lower()
    repeated = field.label == FieldDescriptorProto.Label.LABEL_REPEATED
    return ("repeated " if repeated else "optional " if field.proto3_optional else "") + kind


def _linked(full_name: str) -> str:
    name = full_name.removeprefix(".sentiment.v1.")
    return f"`{full_name[1:]}`" if "." in name else f"[{name}](#{name.lower()})"


def python_page() -> str:
    """The public names of the client, from their docstrings."""
    text = (
        "# Python client\n\nFor Python programmers: every public name of `sentiment.client` and `Local`, from their docstrings.\n"
        "[The guide](../guide/python-client.md) shows how to use them.\n\n"
        + (inspect.getdoc(sentiment.client) or "").replace("``", "`")
        + "\n"
    )
    told: dict[tuple[type, str], str] = {}
    for name, found in [(name, getattr(sentiment.client, name)) for name in sentiment.client.__all__] + [("Local", sentiment.Local)]:
        text += f"\n## {name}\n\n"
        if inspect.isclass(found):
            text += "".join(_class(found, told))
        elif inspect.isfunction(found):
            text += _signature(_tree(found)) + _docstring(inspect.getdoc(found) or "")
        else:
            kinds = (f"[{kind.__name__}](#{kind.__name__.lower()})" if inspect.isclass(kind) else f'`"{kind}"`' for kind in found.__args__)
            text += f"One of {', '.join(kinds)}.\n"
    return text


def _class(found: type, told: dict[tuple[type, str], str]) -> Iterator[str]:
    """A class. ``told``: where methods stand on the page, by the class that has each and its name: those of a base class appear once."""
    tree = _tree(found)
    fields = [ast.unparse(node) for node in tree.body if isinstance(node, ast.AnnAssign) and not ast.unparse(node).startswith("_")]
    if fields:
        yield "```text\n" + "\n".join(fields) + "\n```\n\n"
    yield _docstring(inspect.getdoc(found) or "")
    links = []
    for name, (owner, nodes) in _methods(found).items():
        doc = ast.get_docstring(nodes[-1]) or ("" if name.startswith("_") else inspect.getdoc(getattr(found, name)) or "")
        if name == "__init__" and (doc or not fields):
            yield "\n" + _signature(nodes[0], found.__name__) + _docstring(doc)
        elif (owner, name) in told:
            links.append(f"[{told[owner, name]}](#{told[owner, name].replace('.', '').lower()})")
        elif not name.startswith("_"):
            told[owner, name] = f"{found.__name__}.{name}"
            yield f"\n### {told[owner, name]}\n\n"
            shown = [f"`{name}: {_answer(nodes[0])}`\n\n"] if _marked(nodes[0], "property") else map(_signature, nodes[:-1] or nodes)
            yield "".join(shown) + _docstring(doc)
    if links:
        yield f"\nIts other calls are {', '.join(links)}.\n"


def _methods(found: type) -> dict[str, tuple[type, list[ast.FunctionDef | ast.AsyncFunctionDef]]]:
    """The methods by name, those of the base of all calls first: the class that has it, and its overloads, then itself."""
    methods: dict[str, tuple[type, list[ast.FunctionDef | ast.AsyncFunctionDef]]] = {"__init__": (found, [])}
    for owner in reversed(found.__mro__):
        if owner is found or owner.__module__ in CALLS:
            own: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
            for node in _tree(owner).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    own.setdefault(node.name, []).append(node)
            methods.update({name: (owner, nodes) for name, nodes in own.items()})
    return {name: told for name, told in methods.items() if told[1]}


def _marked(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == name for mark in node.decorator_list)


def _tree(found: object) -> Any:  # the kind of node is that of what is found
    return ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]  # type: ignore[arg-type]  # a class or a function


def _signature(node: ast.stmt, name: str = "") -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = node.args
    arguments.args = [argument for argument in arguments.args if argument.arg not in ("self", "cls")]
    begun = ("async " if isinstance(node, ast.AsyncFunctionDef) else "") + (name or node.name)
    answer = "" if name or node.returns is None else f" -> {_answer(node)}"
    line = f"{begun}({ast.unparse(arguments)}){answer}"
    if len(line) > 100:
        line = f"{begun}(\n    " + ",\n    ".join(_each(arguments)) + f",\n){answer}"
    return f"```text\n{line}\n```\n\n"


def _answer(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The type of what a function gives, without the quotes that spare an import."""
    return ast.unparse(node.returns).strip("'") if node.returns else ""


def _each(arguments: ast.arguments) -> Iterator[str]:
    """The arguments, one by one; a star where those by name begin."""
    missing = len(arguments.args) - len(arguments.defaults)
    for place, argument in enumerate(arguments.args):
        yield ast.unparse(argument) + (f" = {ast.unparse(arguments.defaults[place - missing])}" if place >= missing else "")
    if arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _docstring(doc: str) -> str:
    """A docstring as Markdown: its sections as lists, its examples as blocks of code."""
    lines: list[str] = []
    section = example = False
    for raw in [*doc.splitlines(), ""]:
        if not example and raw.startswith(">>> "):
            lines.append("```pycon")
            example = True
        elif example and not raw:
            lines.append("```")
            example = False
        if example:
            lines.append(raw)
            continue
        line = raw.replace("``", "`").replace("<", "&lt;")
        if line in ("Args:", "Raises:", "Returns:", "Attributes:"):
            section = True
            lines += [f"**{line.removesuffix(':')}**", ""]
        elif section and line.startswith("    "):
            text = line.strip()
            name, colon, said = text.partition(": ")
            begins = not line.startswith("        ") and bool(colon) and " " not in name.replace(", ", "").replace(" or ", "")
            lines.append(f"- `{name}`: {said}" if begins else ("  " if lines[-1].startswith(("- ", "  ")) else "- ") + text)
        else:
            section = section and not line
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n" if doc else ""


def way() -> str:
    """A call's way through the modules, numbered in its order. Dotted: the caller does not import what it calls, but is given it."""
    graph = _graph()
    modules = list(dict.fromkeys(module for call in WAY for module in call))
    for module in modules:
        assert module in graph.modules, f"{module} is no module; mend WAY in docs/reference.py"
    lines = [f'    m{number}["{number} {_path(module)}"]' for number, module in enumerate(modules, 1)]
    for caller, called in WAY:
        arrow = "-->" if called in graph.find_modules_directly_imported_by(caller) else "-.->"
        lines.append(f"    m{modules.index(caller) + 1} {arrow} m{modules.index(called) + 1}")
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"]) + "\n"


def rooms() -> str:
    """The core's folders and the wings (rounded) as a diagram: an arrow from each to those that it imports, but where another way leads
    there, and a dotted one to the wings that it finds by entry points.
    """
    graph = _graph()
    packages = {module for module in graph.modules if graph.find_children(module)}
    edges: set[tuple[str, str]] = set()
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            ends = _room(module, packages), _room(target, packages)
            if "" not in ends and ends[0] != ends[1]:
                edges.add(ends)
    lines = [f'    {_node(room)}(["{room}"])' if room in WINGS else f'    {_node(room)}["{room}"]' for room in sorted({*chain(*edges)})]
    lines += [f"    {_node(a)} --> {_node(b)}" for a, b in sorted(_reduced(edges))]
    lines += [f"    {_node(a)} -.-> {_node(b)}" for a, b in sorted(set(_found(graph, packages)))]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"]) + "\n"


def _found(graph: grimp.ImportGraph, packages: set[str]) -> Iterator[tuple[str, str]]:
    """Which folder of the core finds which wing, by an entry point's group that it names."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for module in graph.find_modules_that_directly_import("sentiment.wings"):
        source = (ROOT / "service" / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        for group, points in groups.items():
            if f'wing("{group}"' in source:
                yield from ((_room(module, packages), target.split(".")[0]) for target in points.values())


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("sentiment", *WINGS, cache_dir=None)


def _path(module: str) -> str:
    return module.removeprefix("sentiment.").replace(".", "/") + ".py"


def _node(room: str) -> str:
    # A word before the name: "call" alone is a keyword of Mermaid.
    return "in_" + re.sub(r"\W", "_", room)


def _room(module: str, packages: set[str]) -> str:
    """What a module is drawn as; nothing if it lies at the root, or is generated."""
    parts = module.split(".")
    if parts[0] in WINGS:
        return parts[0]
    if module in APART:
        return _path(module)
    if len(parts) < 2 or ".".join(parts[:2]) not in packages or parts[1] in GENERATED:
        return ""
    if parts[1] == DIVIDED:
        return "/".join(parts[1:3]) if ".".join(parts[:3]) in packages and len(parts) > 2 else ""
    return parts[1]


def _reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges without those whose ends others lead from one to the other."""
    left = set(edges)
    for edge in sorted(edges):
        if _leads(left - {edge}, *edge):
            left.remove(edge)
    return left


def _leads(edges: set[tuple[str, str]], start: str, end: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        reached = {b for a, b in edges if a == waiting[-1]} - seen
        waiting.pop()
        seen |= reached
        waiting += sorted(reached)
    return end in seen


def runs() -> str:
    """The runs of ``make bench-peers`` that are kept, a section for each kind of machine."""
    kept = [from_json(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(PEERS.with_suffix("").glob("*.json"))]
    return wrapped("\n".join(to_summary(rows, meta) for rows, meta in kept))


def methods_js() -> str:
    """The registry of methods for the viewer."""
    names = {field.name: re.sub(r"_(\w)", lambda letter: letter[1].upper(), field.name) for field in fields(Method)}
    methods = {name: {names[key]: value for key, value in asdict(method).items()} for name, method in REGISTRY.items()}
    return f"{SCRIPT_HEAD}/** The attribution methods by name, in the service's order. */\nexport const METHODS = {_json(methods)};\n"


def sentences_js() -> str:
    """The sentences and the limits in them for the viewer."""
    numbers = ("ZERO_ERRORS", "SET_SHOWN", "SENTENCE_SHARE", "SENTENCE_WORD_MIN", "RANDOM_SETS", "EVIDENCE_WORDS_MIN")
    limits = "".join(f"export const {name} = {getattr(wording, name)};\n" for name in numbers)
    return f"{SCRIPT_HEAD}{limits}/** What the terminal says too, by key. */\nexport const TEMPLATES = {_json(wording.TEMPLATES)};\n"


def _json(table: object) -> str:
    return json.dumps(table, ensure_ascii=False, indent=2)


def filled(path: Path, **parts: str) -> str:
    """A page with the named parts as they should be."""
    text = path.read_text(encoding="utf-8")
    for name, made in parts.items():
        begin = f"<!-- {name}: made by docs/reference.py -->\n"
        before, found, rest = text.partition(begin)
        assert found and END in rest, f"{path} lacks {begin.strip()} or {END}"
        text = before + begin + made + END + rest.partition(END)[2]
    return text


def made() -> dict[Path, str]:
    """Every file that is made, by where it belongs."""
    pages = {
        "settings": settings_page,
        "cli": cli_page,
        "metrics": metrics_page,
        "status-codes": status_page,
        "api": api_page,
        "python": python_page,
    }
    return {
        **{DOCS / f"reference/{name}.md": wrapped(HEAD + make()) for name, make in pages.items()},
        ARCHITECTURE: filled(ARCHITECTURE, way=way(), rooms=rooms()),
        PEERS: filled(PEERS, runs=runs()),
        OPENAPI: openapi(contract()),
        SERVICE_CONFIG_JSON: json.dumps(SERVICE_CONFIG, indent=2) + "\n",
        MADE: blocking(SOURCE.read_text(encoding="utf-8")),
        VIEWER / "methods.js": methods_js(),
        VIEWER / "sentences.js": sentences_js(),
    }


def main() -> int:
    """Write them."""
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
