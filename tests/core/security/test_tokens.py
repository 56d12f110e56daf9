"""Tokens in files, and which callers they admit."""

import codecs
import hmac
import re
from pathlib import Path

import pytest
import structlog

from sentiment.errors import BadSettings
from sentiment.security import tokens
from sentiment.security.client_credentials import Credentials, first_token
from sentiment.security.reloaded import Reloaded
from sentiment.security.secret_files import CHARACTERS, CHARACTERS_MAX
from sentiment.security.tokens import FILE_BYTES_MAX, FILES_MAX, TOKENS_MAX, Tokens, reloaded_tokens
from tests.core.security.authorities import Mounted

FIRST, SECOND = "first-token-0123456789", "c2Vjb25kLXRva2Vu+/=="
THIRD, FOURTH = "third-token-0123456789", "fourth-token-0123456789"


def read(path: Path) -> Reloaded[dict[str, bytes], Tokens]:
    return reloaded_tokens(path, "auth_tokens")


def admits(source: Reloaded[dict[str, bytes], Tokens], token: str) -> bool:
    return source.now.name_of([f"Bearer {token}"]) is not None


def test_every_token_of_a_file_is_valid_and_comments_are_not_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"# of the checkout\n{FIRST}\n\n  {SECOND}\r\n")

    source = read(tmp_path / "tokens")

    assert [admits(source, token) for token in (FIRST, SECOND, "# of the checkout", "")] == [True, True, False, False]


def test_a_token_may_have_a_name_which_several_tokens_share(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"shop:{FIRST}\n{SECOND}\n shop:{THIRD}\nweb.eu-1:{FOURTH}\n")

    now = read(tmp_path / "tokens").now

    names = [now.name_of([f"Bearer {token}"]) for token in (FIRST, SECOND, THIRD, FOURTH, f"shop:{FIRST}")]
    assert names == ["shop", "", "shop", "web.eu-1", None]
    assert now.weights == {"shop": 1.0, "web.eu-1": 1.0}
    assert first_token(str(tmp_path / "tokens")) == FIRST


def test_a_name_may_have_a_weight(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"shop*2:{FIRST}\nshop*2.0:{SECOND}\nweb*0.1:{THIRD}\nnight*100:{FOURTH}\n")

    now = read(tmp_path / "tokens").now

    assert now.weights == {"shop": 2.0, "web": 0.1, "night": 100.0}
    assert [now.name_of([f"Bearer {token}"]) for token in (FIRST, SECOND, THIRD)] == ["shop", "shop", "web"]
    assert first_token(str(tmp_path / "tokens")) == FIRST


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f":{FIRST}", "line 1 of tokens: the name before a token has 1 to 32"),
        (f"a shop:{FIRST}", "line 1 of tokens: the name before a token has 1 to 32"),
        (f"{FIRST + FIRST}:shop", "line 1 of tokens: the name before a token has 1 to 32"),
        (f"{FIRST}:shop", "line 1 of tokens: a token must have 16 to 4096 characters, got 4"),
        (f"*2:{FIRST}", "line 1 of tokens: the name before a token has 1 to 32"),
        (f"shop*:{FIRST}", "line 1 of tokens: the weight after * is a number from 0.1 to 100"),
        (f"shop*0.09:{FIRST}", "line 1 of tokens: the weight after * is a number from 0.1 to 100"),
        (f"shop*101:{FIRST}", "line 1 of tokens: the weight after * is a number from 0.1 to 100"),
        (f"shop*{FIRST}:{SECOND}", "line 1 of tokens: the weight after * is a number from 0.1 to 100"),
        (f"shop*2:{FIRST}\nshop:{SECOND}", "the file tokens gives shop the weight 1; a line before gives it 2"),
        (f"shop: {FIRST}", f"line 1 of tokens: {CHARACTERS}"),
        (f"shop:{FIRST}\n{FIRST}", "the file tokens gives a token another name than it has in a line before"),
    ],
    ids=[
        "empty",
        "white space",
        "a long token as name",
        "a token as name",
        "a weight alone",
        "no weight",
        "too small",
        "too large",
        "a token as weight",
        "two weights",
        "space after the colon",
        "two names",
    ],
)
def test_a_wrong_name_is_refused_and_nothing_of_the_line_is_quoted(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "tokens").write_text(content)

    with pytest.raises(BadSettings, match=re.escape(says)) as refused:
        read(tmp_path / "tokens")

    assert FIRST not in str(refused.value)


def test_of_a_folder_only_files_without_a_dot_are_read_as_in_a_mounted_secret(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path, web=FIRST.encode())
    (tmp_path / ".hidden").write_text("hidden-token-0123456789")
    source = read(tmp_path)

    before = [admits(source, token) for token in (FIRST, SECOND, "hidden-token-0123456789")]
    mounted.exchange(web=SECOND.encode())

    assert source.look()
    assert before == [True, False, False]
    assert [admits(source, token) for token in (FIRST, SECOND)] == [False, True]


def test_tokens_that_have_gone_from_the_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(FIRST)
    (tmp_path / "new").write_text(SECOND)
    source = read(tmp_path)

    (tmp_path / "old").unlink()

    assert source.look()
    assert [admits(source, token) for token in (FIRST, SECOND)] == [False, True]


def test_a_file_without_a_token_is_refused_and_leaves_the_last_good_ones(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# none yet\n")
    with pytest.raises(BadSettings, match="has no token"):
        read(file)
    file.write_text(FIRST)
    source = read(file)

    # As a shell's redirection leaves it before it writes.
    file.write_text("")

    assert not source.look()
    assert admits(source, FIRST)

    file.write_text(FIRST)
    with structlog.testing.capture_logs() as logged:
        looks = [source.look(), source.look()]
    assert looks == [True, True]
    assert [line["event"] for line in logged] == ["reloaded"]


@pytest.mark.parametrize("wrong", ["short", "with blank in it 0123456", "x" * (CHARACTERS_MAX + 1), "ümlaut-0123456789"])
def test_bad_tokens_leave_the_last_good_ones_and_are_not_logged(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(FIRST)
    source = read(file)
    file.write_text(f"{SECOND}\n{wrong}")

    with structlog.testing.capture_logs() as logged:
        looks = [source.look(), source.look()]

    assert looks == [False, False]
    assert admits(source, FIRST)
    assert not admits(source, SECOND)
    assert [(line["event"], line["files"]) for line in logged] == [("not_reloaded", "tokens")]
    assert "line 2 of tokens" in logged[0]["reason"]
    assert wrong not in str(logged)
    assert SECOND not in str(logged)


def test_files_that_are_not_there_leave_the_last_good_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(FIRST)
    source = read(file)
    file.unlink()

    assert not source.look()
    assert admits(source, FIRST)

    file.write_text(SECOND)
    assert source.look()
    assert not admits(source, FIRST)


def test_limits_are_named(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "long").write_text("#" * (FILE_BYTES_MAX + 1))
    (tmp_path / "many").write_text("\n".join(f"token-number-{number:08}" for number in range(TOKENS_MAX + 1)))
    (tmp_path / "folder").mkdir()
    for number in range(FILES_MAX + 1):
        (tmp_path / "folder" / str(number)).touch()

    found = {}
    for name in ("short", "long", "many", "folder", "absent"):
        with pytest.raises(BadSettings) as error:
            read(tmp_path / name)
        found[name] = str(error.value).removeprefix(f"auth_tokens = '{tmp_path / name}': ")

    assert found == {
        "short": "line 1 of short: a token must have 16 to 4096 characters, got 5",
        "long": "the file long has more bytes than the limit of 65536",
        "many": "has 129 tokens; the limit is 128",
        "folder": "the folder has 129 files; the limit is 128",
        "absent": "cannot be read: No such file or directory",
    }


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [FIRST],
        [f"Basic {FIRST}"],
        [f"Bearer  {FIRST}"],
        [f"Bearer {FIRST} "],
        [f"Bearer {FIRST[:-1]}"],
        [f"Bearer {FIRST}x"],
        [f"Bearer {FIRST},Bearer {FIRST}"],
        [f"Bearer {FIRST}", f"Bearer {FIRST}"],
        ["Bearer " + FIRST.upper()],
        ["Bearer " + "x" * 100_000],
        ["Bearer \udcff\x00"],
        [b"Bearer \xff\x00"],
    ],
)
def test_only_a_single_header_with_the_exact_token_is_accepted(headers: list[str | bytes]) -> None:
    valid = Tokens({FIRST: "", SECOND: "shop"}, {})

    assert valid.name_of(headers) is None
    assert valid.name_of([f"bearer {SECOND}"]) == "shop"


def test_each_token_is_compared_in_constant_time_whatever_the_others_said(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, in_constant_time = [], hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return in_constant_time(one, other)

    monkeypatch.setattr(tokens.hmac, "compare_digest", compare)
    valid = Tokens(dict.fromkeys([FIRST, SECOND, "third-token-0123456789"], ""), {})

    compared.clear()
    assert valid.name_of([f"Bearer {FIRST}"]) is not None
    assert valid.name_of(["Bearer x"]) is None
    assert compared == [(32, 32)] * 6


def test_a_byte_order_mark_is_not_part_of_a_token(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(codecs.BOM_UTF8 + f"{FIRST}\n".encode())

    assert admits(read(tmp_path / "tokens"), FIRST)
    assert first_token(str(tmp_path / "tokens")) == FIRST


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("# mine\ntök-0123456789abcdef\n".encode(), f"line 2 of tokens: {CHARACTERS}"),
        (f"{FIRST} of the checkout\n".encode(), f"line 1 of tokens: {CHARACTERS}"),
        (codecs.BOM_UTF16_LE + FIRST.encode("utf-16-le"), "tokens is in UTF-16; save it in UTF-8"),
        (b"# none\n", "has no token"),
    ],
    ids=["not ASCII", "white space", "UTF-16", "none"],
)
def test_a_client_names_what_is_wrong_with_a_file_as_the_server_does(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)

    with pytest.raises(BadSettings) as of_server:
        read(path)
    with pytest.raises(BadSettings) as of_client:
        Credentials(token_file=str(path)).for_grpc()

    assert str(of_server.value) == f"auth_tokens = '{path}': {says}"
    assert str(of_client.value) == f"{path}: {says}"


def test_an_invalid_token_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BadSettings, match="a token may have only"):
        Credentials(token="tök-0123456789abcdef").for_grpc()
