"""Sentences are plain: pages, docstrings, comments and names of tests use none of the phrases that readers have to decode."""

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BANNED = {
    "so many": r"so many",
    "anew": r"anew",
    "is told": r"(?:is|are|was|were|been|being) told",
    "let in": r"let(?:s|ting)? in(?:to)?",
    "in vain": r"in vain",
    "is away": r"(?:is|are|was|were) away",
    "for want of": r"for want of",
    "whoever": r"whoever",
    "as ever": r"(?:as|than) ever",
    "is none": r"(?:is|are|was|were) (?-i:none)",
    # "No longer" and "no faster" are plain.
    "is no X": r"(?:is|are|was|were) no(?! (?:longer|more|better|faster|wider)\b) \w+",
}
PLAIN = r"there (?:is|are|was|were) none|there (?:is|are|was|were) no"
PATTERN = re.compile(
    "|".join([PLAIN, *(rf"(?P<_{at}>\b{pattern}\b)" for at, pattern in enumerate(BANNED.values()))]).replace(" ", r"\s+"), re.IGNORECASE
)
CODE = re.compile(r"^( *)```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# What a docstring follows.
STARTS = (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def blocks_of_python(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, blocks of comments, and names of tests, with the line where each starts."""
    comments: list[tokenize.TokenInfo] = []
    with path.open("rb") as file:
        before = tokenize.ENCODING, ""
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if comments and token.start[0] > comments[-1].start[0] + 1:
                    yield comments[0].start[0], "\n".join(each.string[1:] for each in comments)
                    comments = []
                comments.append(token)
            elif token.type == tokenize.STRING and before[0] in STARTS:
                yield token.start[0], token.string
            elif before[1] == "def" and token.string.startswith("test_"):
                yield token.start[0], token.string.replace("_", " ")
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type, token.string
    if comments:
        yield comments[0].start[0], "\n".join(each.string[1:] for each in comments)


def blocks_of_script(path: Path) -> Iterator[tuple[int, str]]:
    """Comments that have lines of their own. Other lines are empty."""
    lines = path.read_text(encoding="utf-8").split("\n")
    yield 1, "\n".join(re.sub(r"^\s*(//|/?\*+)", "", line) if re.match(r"\s*(//|/?\*)", line) else "" for line in lines)


def blocks_of_page(path: Path) -> Iterator[tuple[int, str]]:
    yield 1, CODE.sub(lambda found: "`" + "\n" * found[0].count("\n") + "`", path.read_text(encoding="utf-8"))


def found_in(path: Path) -> Iterator[str]:
    blocks = {".py": blocks_of_python, ".md": blocks_of_page}.get(path.suffix, blocks_of_script)
    for first, text in blocks(path):
        for found in PATTERN.finditer(text):
            if found.lastgroup:
                line = first + text.count("\n", 0, found.start())
                yield f"{path.relative_to(ROOT)}:{line}: {list(BANNED)[int(found.lastgroup[1:])]!r}: {' '.join(found[0].split())}"


def test_pages_comments_and_names_of_tests_are_in_plain_words() -> None:
    code = [path for folder in ("service", "models", "tests", "docs", "deploy", "proto") for path in (ROOT / folder).rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")]
    scripts = [*(ROOT / "service").rglob("*.js"), *(ROOT / "proto").rglob("*.proto")]
    texts = [*code, *scripts, *(page for page in pages if ROOT / "docs/reference" not in page.parents)]

    found = [line for path in sorted(texts) if path != Path(__file__) for line in found_in(path)]

    assert found == [], "rewrite plainly:\n" + "\n".join(found)
