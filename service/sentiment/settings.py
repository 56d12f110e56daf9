"""Every setting, once: a field here is a flag of ``sentiment serve``, a SENTIMENT_* variable and a key of the TOML file."""

import argparse
import difflib
import ipaddress
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator

from sentiment.addresses import TARGET_VARIABLE, is_loopback
from sentiment.batch_limits import ON_CPU, ON_GPU
from sentiment.errors import BadSettings

PREFIX = "SENTIMENT_"
# The others are the client's: a server may be started from the same shell.
NOT_SETTINGS = (PREFIX + "CONFIG", PREFIX + "CLIENT_TOKEN", TARGET_VARIABLE)
# Kubernetes injects such names for a Service called sentiment. No setting may have a name of this form.
INJECTED = re.compile(r"_PORT(_|$)|_SERVICE_")

# Probes and Prometheus send no token.
EXEMPT = (
    *("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/healthz", "/readyz", "/metrics"),
    *("/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady", "/v2/health/live", "/v2/health/ready"),
)
MODEL = r"^[a-z0-9][a-z0-9_-]{0,62}(/\d{1,9})?$"
ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[A-Za-z0-9_.-]+)):(?P<port>[0-9]{1,5})")
PORT_MAX = 65_535
# The settings that a change of the file changes while the server runs.
RELOADED = ("log_level", "access_log")
UNIX = re.compile(r"unix:[^\s:,]+")
# Limit of a Unix socket's path, without the terminating zero byte.
UNIX_BYTES_MAX = 107
# The form of the entries of these lists, and the message about an entry of another form. Origins are as browsers send them.
ENTRIES = {
    "models": (MODEL, "{!r:.80} is not a name or name/version"),
    "cors_origins": (
        r"\*|[a-z][a-z0-9+.-]{0,31}://([a-z0-9_.-]{1,253}|\[[0-9a-f:]{2,39}\])(:[0-9]{1,5})?",
        "{!r:.80} must be * or an origin in lower case without a path, such as https://example.org:8443",
    ),
    "http_hosts": (
        r"\*|[a-z0-9_.-]{1,253}|[0-9a-f:]{2,39}",
        "{!r:.80} must be * or a name or address in lower case without a port, such as sentiment.example.org",
    ),
    "auth_exempt": (r"/\S{0,255}", "{!r} must begin with / and have at most 256 characters"),
}
# Numbers as text, from the environment and the command line.
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)

# Front ends that are started unasked, and for how many cores.
FRONT_ENDS_AUTO_MAX, FRONT_ENDS_CORES_MIN = 8, 4
# Messages of the longest kind for which there must be room: of one caller two, of which JSON makes three times as many bytes.
MESSAGES_MIN = 6

Seconds = Annotated[float, Field(ge=0, le=3600)]


@dataclass(frozen=True, slots=True)
class Source:
    """The settings file; None: none. And the names of the settings of flags and variables, which the file does not change.

    Two are equal: settings are equal wherever they are from.
    """

    file: Path | None = attribute(default=None, compare=False)
    given: frozenset[str] = attribute(default=frozenset(), compare=False)


class Settings(BaseModel):
    """The server's settings, read once at startup. Immutable; each part gets only the settings that it needs."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    _source: Source = PrivateAttr(Source())

    grpc_listen: str = Field("127.0.0.1:50051", description="address and port of gRPC; port 0 picks a free one")
    http_listen: str = Field("127.0.0.1:8080", description="address and port of HTTP (metrics, health, JSON); empty: off")
    bundles: tuple[Path, ...] = Field(
        (), description="folders that hold bundles, separated by ':', searched before /models, the checkout and installed bundles"
    )
    model: str = Field("english", description="the default model: name or name/version", pattern=MODEL)
    models: tuple[str, ...] = Field(
        (), description="further models to load at the start, as name or name/version, separated by ','", max_length=64
    )
    models_max: int = Field(
        3,
        description="max model versions in memory, including those kept for rollback and the one being loaded",
        ge=1,
        le=64,
    )
    models_bytes_max: int = Field(
        0, description="max total bytes of the files of models in memory, about the memory they take; 0: no limit", ge=0, le=2**50
    )
    models_watch_s: Seconds = Field(
        0.0,
        description="seconds between checks for higher versions of unpinned models, served once verified; 0: off",
    )
    admin_listen: str = Field(
        "",
        description="address of the admin port, which changes models: loopback, such as 127.0.0.1:50053, or unix:PATH; empty: off",
    )
    admin_tokens: str = Field(
        "", description="file of bearer tokens, one per line, or folder of such files; every call of the admin port needs one"
    )
    precision: Literal["auto", "int8", "fp16", "fp32"] = Field(
        "auto", description="graph to serve (fp16: GPU only, int8: CPU only); auto: the first that passes its golden set on the device"
    )
    inexact_models: Literal["alone", "batch", "refuse"] = Field(
        "alone",
        description="a model whose answers depend on the other texts of their batch, such as one that quantize_dynamic made (over 1e-4 "
        "of a probability, in fp16 2e-3): run each of its texts by itself (alone), batch them like others (batch), or do not serve it "
        "(refuse)",
    )
    device: str = Field(
        "auto",
        description="where to run: cpu, cuda (every GPU), or GPUs such as cuda:0,cuda:1; auto: working GPUs of one type, otherwise cpu",
        pattern=r"^(auto|cpu|cuda|cuda:\d{1,2}(,cuda:\d{1,2})*)$",
    )
    device_bytes_max: int = Field(
        0,
        description="max bytes of each GPU's memory for weights and batches; CUDA itself needs more on top; 0: no limit",
        ge=0,
        le=2**40,
    )
    device_captures: bool = Field(
        False,
        description="on a GPU, capture the runs of batches of up to 1,024 tokens as CUDA graphs, which saves launches; not proved on a GPU",
    )
    runners: int = Field(
        0,
        description="batches that run in parallel on the CPU, one core each; 0: as many as CPU affinity and cgroup quota allow",
        ge=0,
        le=256,
    )
    front_ends: int = Field(
        -1,
        description="processes that serve gRPC and tokenize for one model process; use them if one process cannot keep the device "
        "busy; 0: off; -1: automatic: with a GPU named in device and at least 4 cores, cores - 2, at most 8; otherwise 0",
        ge=-1,
        le=64,
    )
    batch_threads_max: int = Field(
        0,
        description="on the CPU, max threads of a batch that runs while other runners are idle; 0: 2 if there are as many runners; 1: one",
        ge=0,
        le=64,
    )
    batch_rows_max: int = Field(
        0, description=f"max rows in a batch; 0: {ON_CPU['rows']} on the CPU, {ON_GPU['rows']} on a GPU", ge=0, le=4096
    )
    batch_tokens_max: int = Field(
        0,
        description="max tokens in a batch, padding included; a single row may exceed it; "
        f"0: {ON_CPU['tokens']} on the CPU, {ON_GPU['tokens']} on a GPU",
        ge=0,
        le=2**18,
    )
    batch_scores_bytes_max: int = Field(
        0,
        description="max bytes of one layer's attention scores in a batch: rows x heads x length^2 x 4; "
        f"0: {ON_CPU['scores_bytes'] // 2**20} MiB on the CPU, {ON_GPU['scores_bytes'] // 2**30} GiB on a GPU",
        ge=0,
        le=2**36,
    )
    effort: Literal["full", "adaptive"] = Field(
        "full",
        description="what to read of a text where a call does not say: all, or a part of a long one first, by the rule of its bundle",
    )
    effort_audit_share: float = Field(
        0.01,
        description="share of the answers with adaptive effort whose texts are read in full too, where a part sufficed, to watch how many "
        "differ; while texts are classified this takes at most explain_share of one core, besides explanations; 0: off",
        ge=0,
        le=1,
    )
    effort_fallback: bool = Field(
        False,
        description="read every text of a model in full from when audits show that more than 1 % of its answers differ, until it is "
        "loaded again",
    )
    answer_cache_bytes: int = Field(
        0,
        description="bytes of memory for each model's answers, so that a text that the same token asked about before is answered without "
        "running the model, and equal texts under way are run once; 0: neither",
        ge=0,
        le=2**34,
    )
    bulk_share: float = Field(0.2, description="share of the run time that bulk rows get while interactive rows also wait", gt=0, lt=1)
    latency_objective_s: float = Field(
        0.5,
        description="seconds that calls should stay within: the alerts count slower Classify and ModelInfer calls, and texts that "
        "arrive this much later than another of their class do not overtake it, unless a deadline is near",
        gt=0,
        le=3600,
    )
    cache_dir: str = Field(
        "",
        description="folder that keeps measured batch costs and GPU graphs across restarts; empty: made at each start",
    )
    queue_rows_max: int = Field(4096, description="max waiting rows; further rows are refused with RESOURCE_EXHAUSTED", ge=1, le=65_536)
    call_rows_max: int = Field(256, description="max unanswered rows of one batch or stream call", ge=1, le=100_000)
    interactive_items_max: int = Field(
        8,
        description="max items of a ClassifyBatch or ModelInfer call, and unanswered ones of a ClassifyStream, that may be interactive; "
        "the others are bulk, whatever they ask for; 0: of several texts none",
        ge=0,
        le=100_000,
    )
    calls_max: int = Field(
        8192,
        description="max open calls; a caller gets at most as many as stay free; further ones are refused with RESOURCE_EXHAUSTED",
        ge=1,
        le=1_000_000,
    )
    calls_pending_max: int = Field(
        512,
        description="max calls of a method that wait for the event loop; from half of it on, some end as CANCELLED",
        ge=2,
        le=65_536,
    )
    text_bytes_max: int = Field(2**20, description="max UTF-8 bytes of a text", ge=1, le=2**26)
    sentences_max: int = Field(64, description="max sentences of a text that are answered; further ones are only counted", ge=1, le=256)
    targets_max: int = Field(16, description="max targets of a text", ge=1, le=64)
    batch_items_max: int = Field(1024, description="max items in a ClassifyBatch call", ge=1, le=100_000)
    message_bytes_max: int = Field(4 * 2**20, description="max bytes of a request message", ge=2**10, le=2**28)
    request_bytes_max: int = Field(
        2**27,
        description="max bytes of the requests that a process receives or answers, of all callers together; one caller may hold at most "
        "half of it; at least 6 times message_bytes_max",
        ge=2**20,
        le=2**40,
    )
    receive_s_max: float = Field(
        10.0,
        description="seconds within which the message or body of a request must have arrived; later ones end with DEADLINE_EXCEEDED",
        gt=0,
        le=3600,
    )
    grpc_connections_max: int = Field(
        0,
        description="max gRPC connections of a process; further ones are closed; 0: 65 % of its limit of open files",
        ge=0,
        le=10_000_000,
    )
    grpc_compression: bool = Field(
        False,
        description="accept gRPC messages that are compressed with gzip or deflate; a few kilobytes of them may take 16 MB of memory each "
        "before a token is checked; off: they are refused with UNIMPLEMENTED",
    )
    deadline_default_s: float = Field(5.0, description="deadline in seconds of a request without one", gt=0, le=3600)
    deadline_max_s: float = Field(60.0, description="longest deadline in seconds; longer ones are cut to it", gt=0, le=3600)
    deadline_margin_s: float = Field(
        0.002,
        description="an answer counts as in time (deadline_outcome_total) if it is handed to the transport at least this many seconds "
        "before its deadline",
        ge=0,
        le=60,
    )
    explain: bool = Field(
        True, description="explain answers on request; off: no explain graph is loaded and Explain fails (FAILED_PRECONDITION)"
    )
    explain_share: float = Field(
        0.25,
        description="share of one core for explanations while texts are classified (one within the last second); otherwise all of it",
        gt=0,
        le=1,
    )
    explain_on: Literal["cpu", "device"] = Field(
        "cpu", description="where a GPU server runs attention and gradients of explanations: cpu, or its first GPU; not proved on a GPU"
    )
    # To let one in takes 3 ms on the event loop beside 64 that wait, and nine times as long beside three times as many.
    explain_calls_max: int = Field(
        16, description="max waiting explanations, and as many short ones besides; further ones are RESOURCE_EXHAUSTED", ge=1, le=64
    )
    explain_bytes_max: int = Field(128 * 2**20, description="max bytes of an explanation from Explain", ge=2**16, le=2**31 - 1)
    shadow_share: float = Field(
        0.0,
        description="share of the answered texts that a version loaded beside the one in use scores too, to compare the two; while texts "
        "are classified this takes at most explain_share of one core, besides explanations; 0: off",
        ge=0,
        le=1,
    )
    hidden_drift_share: float = Field(
        0.0,
        description="share of the answered texts whose hidden states are compared with the bundle's references too, for drift; needs "
        "explain; while texts are classified this takes at most explain_share of one core, besides explanations; 0: off",
        ge=0,
        le=1,
    )
    tls_cert_file: str = Field("", description="server certificate with its chain, in PEM; enables TLS for gRPC and HTTP; empty: plaintext")
    tls_key_file: str = Field("", description="private key of tls_cert_file, in PEM, not encrypted")
    tls_client_ca_file: str = Field(
        "",
        description="CA certificates, in PEM; clients must present a certificate from one of them (mTLS; HTTP: TLS 1.3); empty: not needed",
    )
    health_listen: str = Field(
        "127.0.0.1:50052",
        description="with TLS: address and port of plaintext gRPC health for probes, and nothing else; empty: off",
    )
    auth_tokens: str = Field(
        "",
        description="file of bearer tokens, one per line as TOKEN or NAME:TOKEN, or folder of such files; every call needs one; empty: no "
        "call does",
    )
    auth_exempt: tuple[str, ...] = Field(
        EXEMPT, description="gRPC methods (/package.Service/Method) and HTTP routes (/path) that need no token, separated by ','"
    )
    reload_s: float = Field(
        10.0,
        description="seconds between checks of TLS and token files for changes; invalid files leave the last good ones in use",
        gt=0,
        le=3600,
    )
    web: Literal["all", "metrics"] = Field("all", description="what HTTP serves: all, or only /metrics, /healthz and /readyz")
    viewer: bool = Field(True, description="serve the explanation viewer over HTTP, at /")
    cors_origins: tuple[str, ...] = Field(
        (),
        description="origins of web pages that may read answers over HTTP (CORS), such as https://example.org, separated by ','; "
        "*: any; empty: none",
        max_length=64,
    )
    http_hosts: tuple[str, ...] = Field(
        (),
        description="host names, besides loopback names, that requests may name in the Host header, separated by ','; *: any; if empty: "
        "only loopback names and addresses when HTTP listens on loopback, otherwise any name",
        max_length=64,
    )
    http_connections_max: int = Field(
        0,
        description="max HTTP connections; for a new one, the one is closed that has waited longest for a request, of the address with "
        "most; 0: a quarter of the limit of open files, at most 4096, or 512 with TLS",
        ge=0,
        le=2**20,
    )
    drain_wait_s: Seconds = Field(3.0, description="seconds after SIGTERM to report not ready but still serve, so that balancers notice")
    drain_grace_s: Seconds = Field(30.0, description="seconds after drain_wait_s until unfinished requests are cut off")
    stall_s: float = Field(
        10.0,
        description="seconds after which a run is asked to stop and the server reports not ready; after twice as long, its rows fail "
        "and the server drains and exits with code 1",
        gt=0,
        le=3600,
    )
    keepalive_min_ping_s: Seconds = Field(
        5.0, description="min seconds between client pings; faster clients are disconnected; keep at most 10 s, the documented interval"
    )
    connection_age_max_s: Seconds = Field(
        0.0, description="seconds until a connection is asked to close, so that clients find new servers; 0: never, or 300 with front ends"
    )
    connection_age_grace_s: Seconds = Field(60.0, description="seconds after connection_age_max_s for its calls to finish")
    reflection: bool = Field(True, description="serve gRPC reflection")
    tracing: bool = Field(
        False,
        description="export traces over OTLP/gRPC; OpenTelemetry's OTEL_ variables set endpoint and sampling (needs the extra tracing)",
    )
    journal: str = Field(
        "", description="folder for a journal of answers, as JSON lines, created if it does not exist; empty: nothing is kept of an answer"
    )
    journal_share: float = Field(1.0, description="share of the answers that the journal keeps, drawn at random", ge=0, le=1)
    journal_texts: bool = Field(False, description="keep the texts in the journal too, as they were sent")
    feedback_bound: bool = Field(
        False,
        description="keep the name of the caller's token in the journal, and let Feedback by request id name only answers to the same name",
    )
    journal_bytes_max: int = Field(
        2**30, description="max bytes of all files of the journal; the oldest are removed first", ge=2**17, le=2**50
    )
    # The index of answers knows whole files: 24 MB of memory for the largest without texts.
    journal_file_bytes_max: int = Field(
        2**24, description="max bytes of a file of the journal; each process writes its own", ge=2**16, le=2**30
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is logged")
    access_log: bool = Field(
        False, description="log each call at level info: caller, method, status code, model, texts, tokens and seconds; never a text"
    )
    log_format: Literal["auto", "json", "text", "console"] = Field(
        "auto",
        description="json: one JSON object per line; text: aligned text, coloured on a terminal unless NO_COLOR is set; auto: text if "
        "standard error is a terminal, otherwise json; console: the same as text",
    )

    @property
    def source(self) -> Source:
        """Where they are from."""
        return self._source

    def read_from(self, source: Source) -> "Settings":
        """Say where they are from. Once, after they were read."""
        self._source = source
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: object, info: ValidationInfo) -> object:
        """Accept only real numbers: pydantic would take true for 1 and "2.0" for 2."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        if wanted not in (int, float):
            return value
        pattern, expected = (WHOLE, "a whole number") if wanted is int else (NUMBER, "a number")
        if isinstance(value, str):
            fits = pattern.fullmatch(value) is not None
        else:
            fits = not isinstance(value, bool) and (wanted is float or not isinstance(value, float))
        if not fits:
            raise ValueError(f"must be {expected}")
        return value

    @field_validator("grpc_listen", "http_listen", "health_listen", "admin_listen")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.field_name != "grpc_listen":
            return value
        local = info.field_name == "admin_listen"
        if local and value.startswith("unix:"):
            if not UNIX.fullmatch(value) or len(value.removeprefix("unix:").encode()) > UNIX_BYTES_MAX:
                raise ValueError(f"must be unix:PATH, where PATH has at most {UNIX_BYTES_MAX} bytes and no ':', ',' or white space")
            return value
        host = _host_of(value)
        if host is None:
            raise ValueError(f"must be ADDRESS:PORT, such as 127.0.0.1:50051 or [::1]:50051, with a port of at most {PORT_MAX}")
        if local and not is_loopback(host):
            raise ValueError("must be a loopback address, such as 127.0.0.1:50053, or unix:PATH")
        return value

    @field_validator("models", "auth_exempt", "cors_origins", "http_hosts", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("bundles", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part for part in value.split(os.pathsep) if part) if isinstance(value, str) else value

    @field_validator(*ENTRIES)
    @classmethod
    def _entries(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        form, wrong = ENTRIES[info.field_name or ""]
        for entry in value:
            if not re.fullmatch(form, entry):
                raise ValueError(wrong.format(entry))
        return value


def _host_of(address: str) -> str | None:
    """The host of an ADDRESS:PORT, where ADDRESS is a name, an IPv4 address, or an IPv6 address in brackets; None if invalid."""
    found = ADDRESS.fullmatch(address)
    if not found or int(found["port"]) > PORT_MAX:
        return None
    try:
        if found["six"] is not None:
            return str(ipaddress.IPv6Address(found["six"]))
        # Digits and dots only: must be a valid IPv4 address.
        return found["name"] if found["name"].strip("0123456789.") else str(ipaddress.IPv4Address(found["name"]))
    except ValueError:
        return None


def in_file(settings: Settings) -> dict[str, Any]:
    """What the settings file says now, but for what flags and variables say.

    Raises:
        BadSettings: it cannot be read, or has an unknown name.
    """
    file = settings.source.file
    return {name: value for name, value in ({} if file is None else _read_toml(file)).items() if name not in settings.source.given}


def reloaded(settings: Settings, before: Mapping[str, Any], now: Mapping[str, Any]) -> Settings:
    """The settings with RELOADED as the file says now. ``before`` and ``now``: see ``in_file``; ``before``: at the start.

    Raises:
        BadSettings: others differ, which need a restart, or a value is outside its limits. The message names them, without values.
    """
    if others := sorted(name for name in (before.keys() | now.keys()) - {*RELOADED} if before.get(name) != now.get(name)):
        raise BadSettings(f"{', '.join(others)}: needs a restart; nothing was changed")
    try:
        read = Settings.model_validate({name: now[name] for name in RELOADED if name in now})
    except ValidationError as error:
        raise BadSettings(f"{error.errors()[0]['loc'][0]} has a wrong value; nothing was changed") from error
    return settings.model_copy(update={name: getattr(read, name) for name in RELOADED if name not in settings.source.given})


def config_file(environment: Mapping[str, str]) -> Path | None:
    """The TOML file that a variable names; None: none."""
    return Path(named) if (named := environment.get(PREFIX + "CONFIG")) else None


def load_settings(flags: Mapping[str, Any], environment: Mapping[str, str], config: Path | None = None) -> tuple[Settings, list[str]]:
    """Combine flags, environment and TOML file, in this order of precedence.

    Returns:
        The settings, and the names of ignored variables (those that look injected by Kubernetes).

    Raises:
        BadSettings: an unknown name (the message suggests a known one that is near) or a value outside its limits.
    """
    values = {} if config is None else _read_toml(config)
    given: dict[str, Any] = {}
    ignored: list[str] = []
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if INJECTED.search(variable):
            ignored.append(variable)
            continue
        given[_known(variable.removeprefix(PREFIX).lower(), variable, lambda name: PREFIX + name.upper())] = value
    given.update(flags)
    try:
        settings = Settings.model_validate({**values, **given}).read_from(Source(config, frozenset(given)))
        _check_together(settings)
        return settings, ignored
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        why = first["msg"].removeprefix("Value error, ")
        raise BadSettings(f"{name} = {first['input']!r}: {why} ({flag_of(name)} or {PREFIX}{name.upper()})") from error


def _check_together(settings: Settings) -> None:
    """Refuse combinations of settings that are invalid."""
    _check_ports(settings)
    models = {settings.model, *settings.models}
    if len(models) > settings.models_max:
        raise BadSettings(f"model and models name {len(models)} models; the limit is {settings.models_max} (models_max)")
    if settings.request_bytes_max < MESSAGES_MIN * settings.message_bytes_max:
        raise BadSettings(
            f"request_bytes_max is {settings.request_bytes_max}; it must be at least {MESSAGES_MIN} times message_bytes_max "
            f"({settings.message_bytes_max}): one caller gets half of it, and a message as JSON may be three times as long"
        )
    if settings.hidden_drift_share and settings.explain_on == "device":
        # The graph would run beside the batches of the device, with no priority.
        raise BadSettings(f"hidden_drift_share is {settings.hidden_drift_share:g}; with explain_on = device it must be 0")
    if settings.effort_fallback and not settings.effort_audit_share:
        raise BadSettings("effort_fallback is true; with effort_audit_share = 0 it must be false: audits show when the bound breaks")
    if settings.hidden_drift_share and not settings.explain:
        raise BadSettings(
            f"hidden_drift_share is {settings.hidden_drift_share:g}; without explain it must be 0: explain graphs compute the states"
        )


def _check_ports(settings: Settings) -> None:
    """Refuse two settings of one port."""
    # Without TLS there is no health port.
    names = ("grpc_listen", "http_listen", "admin_listen", *(["health_listen"] if settings.tls_cert_file else []))
    addresses = {name: value for name in names if (value := getattr(settings, name)) and not value.startswith("unix:")}
    for (name, one), (other_name, other) in itertools.combinations(addresses.items(), 2):
        hosts, ports = {_host_of(one), _host_of(other)}, {int(value.rpartition(":")[2]) for value in (one, other)}
        # A wildcard is every address of both families.
        if len(ports) == 1 and ports != {0} and (len(hosts) == 1 or hosts & {"0.0.0.0", "::"}):  # noqa: S104  # it is compared
            raise BadSettings(f"{name} is {one} and {other_name} is {other}: each needs a port of its own")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors of some systems write a byte order mark, which TOML does not take.
        read = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise BadSettings(f"{path}: {error}") from error
    return {_known(name, f"{path}: {name}", str): value for name, value in read.items()}


def _known(name: str, shown: str, spelled: Callable[[str], str]) -> str:
    if name in Settings.model_fields:
        return name
    nearest = difflib.get_close_matches(name.lower().removeprefix(PREFIX.lower()), Settings.model_fields, 1)
    hint = f"; did you mean {spelled(nearest[0])}?" if nearest else ""
    raise BadSettings(f"{shown} is not a setting{hint}")


def flag_of(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def front_ends_of(settings: Settings, cores: int) -> int:
    """The number of front ends for a machine with this many cores; 0: the server is one process.

    A core of the host feeds some thousand single texts a second, far fewer than a GPU runs. The model's process and gRPC's threads are left
    two cores.
    """
    if settings.front_ends >= 0:
        return settings.front_ends
    return min(FRONT_ENDS_AUTO_MAX, cores - 2) if settings.device.startswith("cuda") and cores >= FRONT_ENDS_CORES_MIN else 0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting. Flags that are not given are absent from the parsed namespace."""
    for name, field in Settings.model_fields.items():
        annotation = field.annotation
        kind: dict[str, Any] = {"metavar": "VALUE"}
        if annotation is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        elif get_origin(annotation) is Literal:
            kind = {"choices": get_args(annotation)}
        parser.add_argument(flag_of(name), dest=name, default=argparse.SUPPRESS, help=(field.description or "").replace("%", "%%"), **kind)


def settings_table() -> list[tuple[str, str, str, str]]:
    """Variable, flag, default and help of every setting."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = (
            (":" if name == "bundles" else ",").join(map(str, default))
            if isinstance(default, tuple)
            else str(default).lower()
            if isinstance(default, bool)
            else str(default)
        )
        rows.append((PREFIX + name.upper(), flag_of(name), shown, field.description or ""))
    return rows


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The table of docs/reference/settings.md."""
    lines = ["| variable | flag | default | what it is |", "|---|---|---|---|"]
    lines += [f"| `{variable}` | `{flag}` | {f'`{default}`' if default else ''} | {text} |" for variable, flag, default, text in rows]
    return "\n".join(lines)
