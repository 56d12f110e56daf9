"""Splits a text into sentences: the one rule of predictions by sentence, explanations and training data. Pure.

Written for what people send: reviews, tweets, tickets and chats, in lower case and capitals, with emoji, lists and missing spaces.
Every decision looks at some code points around one sign, so the time is linear, and other threads run between decisions.
docs/internals/sentences.md compares it with libraries.
"""

import re
from collections.abc import Iterator

Span = tuple[int, int]

# Signs are searched in pieces of a text: one search through a megabyte would hold the GIL for 10 ms.
_PIECE = 1 << 15
# Words before a full stop are looked for in this many code points: more than the longest abbreviation with its number.
_BEFORE_MAX = 24
# As much of an address is looked at on either side of a mark.
_LINK_MAX = 64

_PICTURES = "\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_EMOJI = f"(?:[{_PICTURES}][\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*+)"
_EMOTICON = r"(?:>?[:;=]['o-]?[()DPp/|\[\]]++|<3|x[dD])(?!\S)"
_FACES = rf"(?:{_EMOJI}++|(?<!\w){_EMOTICON})"
_BREAKS = "\n\r\x0b\x0c\x85\u2028\u2029"
# Chinese, Japanese, Indian, Arabic, Armenian, Ethiopic, Burmese and Khmer end marks. They end sentences without a space too.
_FULL = "\u3002\uff01\uff1f\uff61\u0964\u0965\u061f\u06d4\u0589\u1362\u1367\u104b\u17d4"

# Most full stops before a small letter or a digit are of numbers and addresses; none ends a sentence.
_SIGN = re.compile(rf"\.(?![a-z\d])|[!?\u2026{_FULL}{_BREAKS}:;=<>]|{_EMOJI}")
# Possessive quantifiers: no run is read again and again.
_PLACE = re.compile(
    # End marks, also with spaces between as in tokenized texts, then closing quotes and brackets, then faces.
    r"(?P<stop>(?P<marks>[.!?\u2026]++(?:\ [.!?\u2026]++(?!\S))*+)"
    r"(?P<closed>(?:[\"'\u2019\u201d\u00bb)\]}]|\ ?(?:[)\]}\u00bb\u201d\u201c]|'')(?!\S))*+))"
    rf"|(?P<full>[{_FULL}]++[\u300d\u300f\u300b\u3011\uff09\u201d\u2019\"')]*+)"
    rf"|(?P<line>[{_BREAKS}]\s*+)"
    rf"|(?P<face>(?:(?<=\s)|(?={_EMOJI})){_FACES}(?:\ ?{_FACES})*+)"
)
_FACES_BEHIND = re.compile(rf"(?:[ \t]*+{_FACES})++")
_SPACE = re.compile(r"\s*+")
_NEXT = re.compile(r"(?P<space>\s*+)(?P<opening>[^\w\s]{0,8}+)(?P<word>[\w'\u2019]{0,24}+)")
_BULLET = re.compile(rf"[-*\u2022\u00b7\u2013\u2014>]\s|\(?\d{{1,3}}[.)]\s|{_EMOJI}")
# What may stand behind the last sentence of a post.
_TAGS = re.compile(rf"(?:\s++(?:[#@]\w++|https?(?:://\S*+)?(?!\S)|{_EMOJI}++)){{1,32}}+\s*+\Z")
_BEFORE = re.compile(r"(?P<number>\d\ ?)?(?<![^\W\d_])(?P<word>(?:[^\W\d_]++\.)*[^\W\d_]++)\ ?\Z")
_WRITTEN = re.compile(r"[^\W_]")
_EMPTY_LINE = re.compile(rf"(?>\r\n|[{_BREAKS}])[^\S{_BREAKS}]*+[{_BREAKS}]")
_NUMBER = re.compile(r"\(?\d{1,3}\Z")
_LINK = re.compile(r"www\.|[/@\\]")
_ADDRESS = re.compile(rf"[^\s{_FULL}{_PICTURES}]{{0,{_LINK_MAX}}}+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never ends of sentences.
_TITLES = _words("mr mrs ms dr prof st mt messrs mme mlle vs mk ft feat pp e.g i.e eg cf approx z.b d.h")
# As titles, if written with a capital: "Gen. Ortiz", but "thanks hon."
_CAPITAL_TITLES = _words("gen sen rep gov capt sgt lt col insp maj rev hon pres")
_BEFORE_NUMBERS = _words("no nos nr fig figs vol p pp sec ext ref ver tel art")
# Abbreviations after numbers.
_UNITS = _words("hr hrs yr yrs min mins sec secs in ft lb lbs oz kg km cm mm bn mn")
# Ends before a capital; these too only before words that often start sentences, because names follow them as well.
_OPEN = _words("etc usw esp incl excl max temp")
_OPEN_BEFORE_NAMES = _words(
    "inc ltd co corp jr sr bros ave rd blvd dept est al jan feb apr jun jul aug sep sept oct nov dec mon tue tues thu thurs fri"
)
_STARTERS = _words(
    "the a an this that these those it its he she they we you i i'm it's my your his her our their there here what why who how when "
    "where which if so but and or then now just not no yes never nobody nothing everyone everything all some most only even still "
    "also in on at for from after before because while although however please thanks thank is are was were be do does did don't have "
    "has had can could should would"
)
# Behind a full stop without a space: not the start of a sentence.
_ENDINGS = _words("com net org io js py md")
# An emoji between such a word and a capital is a verb: "I (heart) New York".
_PRONOUNS = _words("i we you they really")


def sentences(text: str) -> Iterator[Span]:
    """Code points [start, end) of the sentences, in order, without white space around them.

    Together they cover all that is not white space; none for a text of white space alone. A sentence holds a letter or a digit, unless
    the whole text has none. They come one by one: a caller that needs only the first of them does not wait for the rest.
    """
    begin = at = _after_space(text, 0)
    written, read = False, begin
    last: Span | None = None
    for place in _signs(text):
        found = _PLACE.match(text, place) if place >= at else None
        if found is None:
            continue
        at = found.end()
        written = written or _is_written(text, read, place)
        read = place
        if not written or not _ends(text, begin, found):
            continue
        end = at = _with_faces(text, begin, found)
        following = _after_space(text, end)
        if last is not None:
            yield last
        last = begin, _before_space(text, end)
        begin = read = at = following
        written = False
    end = _before_space(text, len(text))
    written = written or _is_written(text, read, end)
    if last is None:
        if begin < end:
            yield begin, end
    elif written:
        yield last
        yield begin, end
    else:
        # What follows the last sentence and holds no word belongs to it.
        yield last[0], end


def _signs(text: str) -> Iterator[int]:
    """Offsets of signs at which sentences may end."""
    return (sign.start() for start in range(0, len(text), _PIECE) for sign in _SIGN.finditer(text, start, start + _PIECE))


def _after_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    assert found is not None
    return found.end()


def _before_space(text: str, end: int) -> int:
    while end and text[end - 1].isspace():
        end -= 1
    return end


def _is_written(text: str, start: int, end: int) -> bool:
    return any(_WRITTEN.search(text, piece, min(piece + _PIECE, end)) for piece in range(start, end, _PIECE))


def _with_faces(text: str, begin: int, found: re.Match[str]) -> int:
    """The end of a sentence with the faces behind its end marks, unless faces begin the sentences of this text."""
    if found["line"] is not None or _FACES_BEHIND.match(text, begin):
        return found.end()
    faces = _FACES_BEHIND.match(text, found.end())
    return faces.end() if faces else found.end()


def _ends(text: str, begin: int, found: re.Match[str]) -> bool:
    """Whether a sentence that starts at ``begin`` ends at a sign, if anything follows."""
    if found["line"] is not None:
        return _line_ends(text, found)
    return not _TAGS.match(text, found.end()) and _mark_ends(text, begin, found)


def _mark_ends(text: str, begin: int, found: re.Match[str]) -> bool:
    """Whether a sentence ends at an end mark or a face."""
    faces = _FACES_BEHIND.match(text, found.end())
    following = _next(text, faces.end() if faces else found.end())
    word = following["word"]
    if found["face"] is not None:
        # Chinese has no spaces.
        apart = bool(following["space"]) or not word[:1].isupper()
        return apart and _is_capital(word) and _word_before(text, begin, found.start()) not in _PRONOUNS
    if found["full"] is not None:
        # A quote within a Japanese sentence is followed by a particle.
        return not found[0].endswith(("\u300d", "\u300f", "\uff09")) or not "\u3040" < word[:1] < "\u30a0"
    if not following["space"] and not faces:
        return _ends_without_space(text, begin, found, word)
    new = _is_sentence_case(word) if _is_ellipsis(found["marks"]) else not found["closed"] or not word[:1].islower()
    return new and not _abbreviates(text, begin, found, following["opening"], word)


def _line_ends(text: str, found: re.Match[str]) -> bool:
    """An empty line ends a sentence. A single line break does not before a small letter or after a comma: a line that was wrapped."""
    if _EMPTY_LINE.match(text, found.start()):
        return True
    if text[_before_space(text, found.start()) - 1] == ",":
        return False
    word = _next(text, found.end())["word"]
    return _is_capital(word) or word[:1].isdigit() or _BULLET.match(text, found.end()) is not None


def _ends_without_space(text: str, begin: int, found: re.Match[str], word: str) -> bool:
    """Whether a space is missing after an end mark: "great.But" has two sentences, "example.com" and "3.5" are words."""
    if found["marks"] == "." and not found["closed"]:
        before = text[found.start() - 1]
        likely = (before.islower() or before.isdigit()) and _is_sentence_case(word) and word.lower() not in _ENDINGS
        if _abbreviates(text, begin, found, "", word):
            return False
    elif found["closed"] or _is_ellipsis(found["marks"]):
        likely = _is_capital(word)
    else:
        likely = word[:1].isalnum()
    return likely and not _is_link(text, begin, found)


def _is_link(text: str, begin: int, found: re.Match[str]) -> bool:
    before = text[max(begin, found.start() - _LINK_MAX) : found.start()].rsplit(None, 1)
    after = _ADDRESS.match(text, found.end())
    assert after is not None
    return _LINK.search("".join([*before[-1:], after[0]])) is not None


def _next(text: str, start: int) -> re.Match[str]:
    found = _NEXT.match(text, start)
    assert found is not None
    return found


def _abbreviates(text: str, begin: int, found: re.Match[str], opening: str, word: str) -> bool:
    """Whether a full stop belongs to an abbreviation, an initial or the number of a list item. ``word``: the next one."""
    if found["marks"] != "." or found["closed"]:
        return False
    window = text[max(begin, found.start() - _BEFORE_MAX) : found.start()]
    if found.start() - begin <= len(window) and _NUMBER.fullmatch(window):
        return True
    before = _BEFORE.search(window)
    return before is not None and _goes_on(before, opening, word)


def _goes_on(before: re.Match[str], opening: str, word: str) -> bool:
    """Whether a sentence goes on behind a word with a full stop, by the word after it and the signs that open before that."""
    written = before["word"]
    short = written.lower()
    if short in _OPEN or (short in _UNITS and before["number"]):
        return bool(opening) or not _is_capital(word)
    title = short in _TITLES or (short in _CAPITAL_TITLES and written[0].isupper())
    if title or (word[:1].isdigit() and short in _BEFORE_NUMBERS):
        return True
    dotted = "." in short and max(map(len, short.split("."))) <= 2
    if short in _OPEN_BEFORE_NAMES or dotted or (len(written) == 1 and written.isupper() and written != "I"):
        return bool(opening) or not _is_sentence_case(word) or word.lower() not in _STARTERS
    return False


def _word_before(text: str, begin: int, end: int) -> str:
    found = _BEFORE.search(text[max(begin, end - _BEFORE_MAX) : end])
    return found["word"].lower() if found else ""


def _is_ellipsis(marks: str) -> bool:
    return (len(marks) > 1 and not marks.strip(". \u2026")) or marks == "\u2026"


def _is_capital(word: str) -> bool:
    """Whether a word starts with a capital, or with a letter of a script without small letters."""
    return word[:1].isalpha() and not word[0].islower()


def _is_sentence_case(word: str) -> bool:
    """As ``_is_capital``, but false where a capital says nothing: in a word of capitals and for an initial; "I" and "A" are words."""
    return _is_capital(word) and (not word.isupper() or word in ("I", "A"))
