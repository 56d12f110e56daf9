"""Tokens in files, and who is let in by them."""

import hmac
from pathlib import Path

import pytest
import structlog

from sentiment.errors import BadSettings
from sentiment.security import tokens
from sentiment.security.reloaded import Reloaded
from sentiment.security.tokens import CHARACTERS_MAX, FILE_BYTES_MAX, FILES_MAX, TOKENS_MAX, Tokens, reloaded_tokens

FIRST, SECOND = "first-token-0123456789", "c2Vjb25kLXRva2Vu+/=="


def read(path: Path) -> Reloaded[dict[str, bytes], Tokens]:
    return reloaded_tokens(path, "auth_tokens")


def lets_in(source: Reloaded[dict[str, bytes], Tokens], token: str) -> bool:
    return source.now.know([f"Bearer {token}"])


def test_every_token_of_a_file_is_valid_and_comments_are_none(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"# of the checkout\n{FIRST}\n\n  {SECOND}\r\n")

    source = read(tmp_path / "tokens")

    assert lets_in(source, FIRST)
    assert lets_in(source, SECOND)
    assert not lets_in(source, "# of the checkout")
    assert not lets_in(source, "")


def test_of_a_folder_files_are_read_and_what_kubernetes_keeps_beside_them_is_not(tmp_path: Path) -> None:
    old, mounted = tmp_path / "..2026_01", tmp_path
    old.mkdir()
    (old / "web").write_text(FIRST)
    (mounted / "..data").symlink_to(old.name)
    (mounted / "web").symlink_to("..data/web")
    (mounted / ".hidden").write_text("hidden-token-0123456789")

    source = read(mounted)

    assert lets_in(source, FIRST)
    assert not lets_in(source, "hidden-token-0123456789")


def test_tokens_are_exchanged_as_a_mounted_secret_is(tmp_path: Path) -> None:
    for number, token in enumerate((FIRST, SECOND)):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "web").write_text(token)
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "web").symlink_to("..data/web")
    source = read(tmp_path)

    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(tmp_path / "..data")

    assert source.look()
    assert lets_in(source, SECOND)
    assert not lets_in(source, FIRST)


def test_a_token_whose_file_has_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(FIRST)
    (tmp_path / "new").write_text(SECOND)
    source = read(tmp_path)

    (tmp_path / "old").unlink()

    assert source.look()
    assert not lets_in(source, FIRST)
    assert lets_in(source, SECOND)


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(FIRST)
    source = read(file)

    file.write_text("")

    assert source.look()
    assert not lets_in(source, FIRST)


@pytest.mark.parametrize("wrong", ["short", "with blank in it 0123456", "x" * (CHARACTERS_MAX + 1), "ümlaut-0123456789"])
def test_bad_tokens_leave_the_last_good_ones_and_are_not_logged(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(FIRST)
    source = read(file)
    file.write_text(f"{SECOND}\n{wrong}")

    with structlog.testing.capture_logs() as logged:
        looks = [source.look(), source.look()]

    assert looks == [False, False]
    assert lets_in(source, FIRST)
    assert not lets_in(source, SECOND)
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
    assert lets_in(source, FIRST)

    file.write_text(SECOND)
    assert source.look()
    assert not lets_in(source, FIRST)


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
def test_only_one_header_with_the_very_token_lets_in(headers: list[str | bytes]) -> None:
    valid = Tokens([FIRST, SECOND])

    assert not valid.know(headers)
    assert valid.know([f"bearer {SECOND}"])


def test_each_token_is_compared_in_constant_time_whatever_the_others_said(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, in_constant_time = [], hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return in_constant_time(one, other)

    monkeypatch.setattr(tokens.hmac, "compare_digest", compare)
    valid = Tokens([FIRST, SECOND, "third-token-0123456789"])

    compared.clear()
    assert valid.know([f"Bearer {FIRST}"])
    assert not valid.know(["Bearer x"])
    assert compared == [(32, 32)] * 6
