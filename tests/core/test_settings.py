"""Settings: sources, precedence, limits, and the messages for invalid ones."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
import pytest
from pydantic import ValidationError

from sentiment.errors import BadSettings
from sentiment.settings import INJECTED, PREFIX, Settings, add_flags, flag_of, front_ends_of, load_settings, markdown_table, settings_table

ROOT = Path(__file__).parents[2]
NAMES = sorted(Settings.model_fields)
# Values of the settings for which ``another_value`` cannot make one from their type.
OTHER_VALUES = {
    "grpc_listen": "0.0.0.0:1",
    "http_listen": "0.0.0.0:2",
    "bundles": "/a:/b",
    "model": "english/7",
    "models": "english/6,other",
    "admin_listen": "127.0.0.1:3",
    "admin_tokens": "/tokens",
    "cache_dir": "/cache",
    "journal": "/journal",
    "journal_share": "0.5",
    "device": "cuda:1,cuda:0",
    "bulk_share": "0.5",
    "explain_share": "0.5",
    "effort_audit_share": "0.5",
    "tls_cert_file": "/tls/tls.crt",
    "tls_key_file": "/tls/tls.key",
    "tls_client_ca_file": "/tls/ca.crt",
    "health_listen": "0.0.0.0:3",
    "auth_tokens": "/tokens",
    "auth_exempt": "/healthz,/sentiment.v1.SentimentService/ListModels",
    "cors_origins": "https://example.org,http://localhost:3000",
    "http_hosts": "example.org,10.0.0.1",
}


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def another_value(name: str) -> str:
    """A valid value that is not the default, as text."""
    field = Settings.model_fields[name]
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    if field.annotation is bool:
        return str(not field.default).lower()
    if get_origin(field.annotation) is Literal:
        return next(str(choice) for choice in get_args(field.annotation) if choice != field.default)
    return str(field.default + 1)


def limits_of(name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for constraint in Settings.model_fields[name].metadata:
        for kind in (annotated_types.Ge, annotated_types.Gt, annotated_types.Le, annotated_types.Lt):
            if isinstance(constraint, kind):
                sign = kind.__name__.lower()
                found[sign] = getattr(constraint, sign)
    return found


def violations() -> list[tuple[str, str, str]]:
    """Settings with values just outside their limits, and the limits as the messages must name them."""
    outside = {"ge": lambda limit: limit - 1, "gt": lambda limit: limit, "le": lambda limit: limit + 1, "lt": lambda limit: limit}
    found = [(name, str(outside[sign](limit)), str(limit)) for name in NAMES for sign, limit in limits_of(name).items()]
    for name in NAMES:
        annotation = Settings.model_fields[name].annotation
        if get_origin(annotation) is Literal:
            found += [(name, "nosuch", f"'{choice}'") for choice in get_args(annotation)]
        elif annotation is bool:
            found.append((name, "maybe", "boolean"))
        elif annotation in (int, float):
            found += [(name, value, "number") for value in ("many", "", "1_0", "\u0661", "inf", "0x1")]
            found += [(name, value, "whole number") for value in ("2.0", "1e1") if annotation is int]
    for name in NAMES:
        if Settings.model_fields[name].annotation is float:
            limits = limits_of(name)
            found += [(name, "nan", "number"), (name, "9e999", str(limits.get("le", limits.get("lt"))))]
    no_address = ("50051", "127.0.0.1:", ":1", "a b:1", "a:123456", "127.0.0.1:99999", "[]:1", "::1:1", "[127.0.0.1]:1", "256.1.1.1:1")
    no_address += ("127.1:1", "http://127.0.0.1:1", "*:1", "127.0.0.1:1,tcp", "127.0.0.1:\u0661")
    for name in ("grpc_listen", "http_listen", "health_listen", "admin_listen"):
        found += [(name, value, "a port of at most 65535") for value in no_address]
    found += [("grpc_listen", value, "a port of at most 65535") for value in ("", "unix:/run/s.sock")]
    found += [("device", value, "auto|cpu") for value in ("", "gpu", "cuda:", "cuda:x", "cuda:0,cpu", "cuda:0,", "CUDA")]
    found += [("admin_listen", f"unix:{path}", "at most 107 bytes") for path in ("", "/s.sock:80,tcp", "/s,tcp", "/a b", "/" + "s" * 107)]
    found += [("admin_listen", value, "loopback") for value in ("0.0.0.0:1", "10.0.0.1:1", "[::]:1", "server:1")]
    found += [("models", value, "name or name/version") for value in ("Capital", "ok,../up", "a/b")]
    found += [("model", value, "a-z0-9") for value in ("", "Capital", "../up", "a/b", "a/1/2", "x" * 64)]
    return found


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Write a TOML file of settings."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "settings.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parsed(*flags: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return vars(parser.parse_args(flags))


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_a_flag_a_variable_and_a_key_alike(name: str, config: Callable[[str | bytes], Path]) -> None:
    value = another_value(name)
    switched = Settings.model_fields[name].annotation is bool
    flags = parsed(flag_of(name).replace("--", "--no-" if value == "false" else "--")) if switched else parsed(flag_of(name), value)

    by_flag, by_variable, by_key = (
        load_settings(flags, {})[0],
        load_settings({}, {variable_of(name): value})[0],
        load_settings({}, {}, config(f'{name} = "{value}"'))[0],
    )

    assert by_flag == by_variable == by_key
    assert getattr(by_flag, name) != getattr(Settings(), name)
    assert all(getattr(by_flag, other) == getattr(Settings(), other) for other in NAMES if other != name)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(config: Callable[[str | bytes], Path]) -> None:
    path = config("runners = 1\nqueue_rows_max = 1\nbatch_rows_max = 1\n")
    environment = {"SENTIMENT_RUNNERS": "2", "SENTIMENT_QUEUE_ROWS_MAX": "2"}

    settings, _ = load_settings(parsed("--runners", "3"), environment, path)

    assert (settings.runners, settings.queue_rows_max, settings.batch_rows_max) == (3, 2, 1)


def test_more_models_than_the_limit_are_refused() -> None:
    with pytest.raises(BadSettings, match=r"4 models; the limit is 3 \(models_max\)"):
        load_settings({"model": "a", "models": "b,c,d"}, {})


def test_nothing_given_means_the_defaults() -> None:
    settings, ignored = load_settings(parsed(), {"PATH": "/bin", "SENTIMENT_CONFIG": "read by the command line"})

    assert settings == Settings()
    assert ignored == []


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("SENTIMENT_RUNNER", "SENTIMENT_RUNNERS"),
        ("SENTIMENT_QUEUE_ROW_MAX", "SENTIMENT_QUEUE_ROWS_MAX"),
        ("SENTIMENT_GRPC_LISTENER", "SENTIMENT_GRPC_LISTEN"),
        ("SENTIMENT_LOGLEVEL", "SENTIMENT_LOG_LEVEL"),
    ],
)
def test_an_unknown_variable_stops_and_the_nearest_is_named(variable: str, nearest: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load_settings({}, {variable: "1"})

    assert str(caught.value) == f"{variable} is not a setting; did you mean {nearest}?"


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    with pytest.raises(BadSettings, match=r"^SENTIMENT_FOO is not a setting$"):
        load_settings({}, {"SENTIMENT_FOO": "1"})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            {"http_listen": "127.0.0.1:50051"},
            "grpc_listen is 127.0.0.1:50051 and http_listen is 127.0.0.1:50051: each needs a port of its own",
        ),
        ({"grpc_listen": "0.0.0.0:8080"}, "grpc_listen is 0.0.0.0:8080 and http_listen is 127.0.0.1:8080"),
        ({"http_listen": "[::1]:7", "admin_listen": "[::1]:7"}, "http_listen is .* and admin_listen is "),
        ({"http_listen": "127.0.0.1:50052", "tls_cert_file": "a", "tls_key_file": "b"}, "http_listen is .* and health_listen is "),
    ],
)
def test_two_settings_of_one_port_are_refused(flags: dict[str, str], says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        load_settings(flags, {})


@pytest.mark.parametrize(
    "flags",
    [
        {"grpc_listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"},
        {"grpc_listen": "[::1]:8080"},
        {"http_listen": ""},
        {"http_listen": "127.0.0.1:50052"},
        {"admin_listen": "unix:/a"},
    ],
    ids=["free ports", "two hosts", "off", "health is of TLS only", "socket"],
)
def test_settings_of_other_ports_are_taken(flags: dict[str, str]) -> None:
    load_settings(flags, {})


def test_an_unknown_key_stops_and_names_file_key_and_the_nearest(config: Callable[[str | bytes], Path]) -> None:
    path = config("runner = 1\n")

    with pytest.raises(BadSettings) as caught:
        load_settings({}, {}, path)

    assert str(caught.value) == f"{path}: runner is not a setting; did you mean runners?"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("runners = true", "runners = True: must be a whole number"),
        ("runners = 2.0", "runners = 2.0: must be a whole number"),
        ("stall_s = true", "stall_s = True: must be a number"),
        ("grpc_listen = 50051", "grpc_listen = 50051: Input should be a valid string"),
    ],
)
def test_a_key_of_another_type_is_refused_with_its_value(key: str, message: str, config: Callable[[str | bytes], Path]) -> None:
    with pytest.raises(BadSettings) as caught:
        load_settings({}, {}, config(key))

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "address", ["localhost:1", "my-host_1.example:65535", "[::]:0", "[fe80::1%eth0]:1", "[::ffff:127.0.0.1]:1", "0.0.0.0:00080"]
)
def test_an_address_may_be_a_name_ipv4_or_ipv6(address: str) -> None:
    assert load_settings({"grpc_listen": address}, {})[0].grpc_listen == address


@pytest.mark.parametrize("content", [b"runners = \n", b"\xff\xfe", b"runners = 1\nrunners = 2\n"], ids=["broken", "bytes", "twice"])
def test_a_broken_file_stops_and_is_named(content: bytes, config: Callable[[str | bytes], Path]) -> None:
    path = config(content)

    with pytest.raises(BadSettings, match=re.escape(str(path))):
        load_settings({}, {}, path)


def test_a_missing_file_stops_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"nosuch\.toml.*No such file"):
        load_settings({}, {}, tmp_path / "nosuch.toml")


def test_variables_injected_by_kubernetes_are_ignored_and_returned() -> None:
    injected = {
        "SENTIMENT_SERVICE_HOST": "10.0.0.1",
        "SENTIMENT_SERVICE_PORT_GRPC": "50051",
        "SENTIMENT_PORT": "tcp://10.0.0.1:50051",
        "SENTIMENT_PORT_50051_TCP_ADDR": "10.0.0.1",
        "SENTIMENT_HEADLESS_PORT": "tcp://10.0.0.2:50051",
    }

    settings, ignored = load_settings({}, {**injected, "SENTIMENT_RUNNERS": "2"})

    assert settings == Settings(runners=2)
    assert ignored == sorted(injected)


@pytest.mark.parametrize("name", [*NAMES, "config"])
def test_no_setting_looks_like_a_variable_injected_by_kubernetes(name: str) -> None:
    assert not INJECTED.search(variable_of(name))


@pytest.mark.parametrize(("name", "value", "limit"), violations())
def test_a_value_outside_its_limit_is_refused_with_setting_value_and_limit(name: str, value: str, limit: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load_settings({}, {variable_of(name): value})

    message = str(caught.value)
    assert message.startswith(f"{name} = {value!r}: ")
    assert limit in message
    assert message.endswith(f"({flag_of(name)} or {variable_of(name)})")


@pytest.mark.parametrize("name", [name for name in NAMES if Settings.model_fields[name].annotation in (int, float)])
def test_a_number_has_a_lower_and_an_upper_limit_and_both_may_be_used(name: str) -> None:
    limits = limits_of(name)

    assert len({"ge", "gt"} & set(limits)) == len({"le", "lt"} & set(limits)) == 1
    # The one has to be at least six times the other.
    beside = {"message_bytes_max": {"request_bytes_max": 2**40}, "request_bytes_max": {"message_bytes_max": 2**10}}.get(name, {})
    for sign in {"ge", "le"} & set(limits):
        given = {variable_of(one): str(value) for one, value in ({name: limits[sign]} | beside).items()}
        assert getattr(load_settings({}, given)[0], name) == limits[sign]


def test_requests_of_the_longest_messages_must_have_room() -> None:
    with pytest.raises(BadSettings, match=r"request_bytes_max is 134217728; it must be at least 6 times message_bytes_max \(33554432\)"):
        load_settings({}, {"SENTIMENT_MESSAGE_BYTES_MAX": str(2**25)})


@pytest.mark.parametrize(
    ("given", "device", "cores", "front_ends"),
    [
        (-1, "cuda", 3, 0),
        (-1, "cuda:0", 4, 2),
        (-1, "cuda", 64, 8),
        (-1, "auto", 64, 0),
        (-1, "cpu", 64, 0),
        (0, "cuda", 64, 0),
        (5, "cpu", 1, 5),
    ],
)
def test_a_named_gpu_has_front_ends_where_there_are_cores(given: int, device: str, cores: int, front_ends: int) -> None:
    assert front_ends_of(Settings(front_ends=given, device=device), cores) == front_ends


def test_settings_cannot_be_changed() -> None:
    settings, _ = load_settings({}, {})

    with pytest.raises(ValidationError, match="frozen"):
        settings.runners = 3  # type: ignore[misc]  # what the test is about


def test_the_table_has_every_setting_with_its_default() -> None:
    rows = settings_table()

    assert [variable for variable, *_ in rows] == [variable_of(name) for name in Settings.model_fields]
    for variable, flag, default, text in rows:
        assert flag == flag_of(variable.removeprefix(PREFIX).lower())
        assert len(text) > 10
        assert not text.endswith(".")
        # The default of the table is valid and changes nothing.
        assert load_settings({}, {variable: default})[0] == Settings()


def test_the_reference_has_the_settings_as_they_are() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")

    assert markdown_table(settings_table()) in page, "docs/reference/settings.md is stale: make reference"


def test_the_clients_variables_are_not_settings_and_do_not_stop_the_start() -> None:
    environment = {"SENTIMENT_TARGET": "host:1", "SENTIMENT_CLIENT_TOKEN": "token", "SENTIMENT_CONFIG": "file"}

    assert load_settings({}, environment) == load_settings({}, {})


def test_a_file_may_begin_with_a_byte_order_mark(config: Callable[[str | bytes], Path]) -> None:
    settings, _ = load_settings({}, {}, config(b"\xef\xbb\xbfrunners = 3\n"))

    assert settings.runners == 3
