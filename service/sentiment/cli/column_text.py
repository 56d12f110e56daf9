"""What a column of explained texts says together, as text for a terminal. Pure."""

import re
from collections.abc import Iterator, Mapping
from textwrap import wrap

from sentiment.cli.terminal import LOGITS_FULL, Hue, Piece, label_hues
from sentiment.explain.methods.column import ROWS_MIN, Column, Part, Reasons, Term
from sentiment.files.visible import columns, fitted, visible

WIDTH_MIN, WIDTH_MAX = 64, 120
# Words, and phrases, of a label that have an example; and words and phrases of a label in a group.
EXAMPLES_SHOWN, GROUP_TERMS_SHOWN = 3, 5
_NAME_MAX, _TERM = 16, 20

Hues = Mapping[str, Hue]
# The texts of the rows that are shown as examples, by their numbers.
Examples = Mapping[int, str]


def column_page(found: Column, by: str | None, examples: Examples, *, colour: bool, width: int) -> str:
    """The page, in lines of at most ``width`` columns (from 64 to 120). ``by``: the column of the groups."""
    width = min(max(WIDTH_MIN, width), WIDTH_MAX)
    hues = label_hues([share.label for share in found.whole.shares])
    blocks = [[*_counts(found.whole, hues, width, colour)], *_reasons(found.whole, hues, examples, width, colour)]
    for place, part in enumerate(found.groups):
        last = found.lumped and place == len(found.groups) - 1
        name = f"{found.lumped:,} other groups" if last else visible(part.name) or "(empty)"
        blocks.append([_bold(fitted(f"{visible(by or '')}: {name}", width).rstrip(), colour), *_counts(part, hues, width, colour)])
        blocks[-1] += [line for reasons in part.reasons for line in _short(reasons, hues[reasons.label], width, colour)]
    blocks.append([*_remarks(found, width)])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def snippet(text: str, term: str, width: int) -> str:
    """The part of a text around a word or phrase, as far as it fits."""
    text = visible(" ".join(text.split()))
    place = re.search(r"(?<!\w)" + r"\s*".join(map(re.escape, term.split())) + r"(?!\w)", text, re.IGNORECASE)
    start = max(0, place.start() - (width - columns(term)) // 2) if place and columns(text) > width else 0
    start = max(0, min(start, len(text) - width + 3))
    return fitted(("..." if start else "") + text[start:].lstrip(), width).rstrip()


def _counts(part: Part, hues: Hues, width: int, colour: bool) -> Iterator[str]:
    rows = part.answered + part.failed
    yield f"{rows:,} row{'' if rows == 1 else 's'}" + (f", {part.failed:,} of them without an explanation" if part.failed else "")
    if not part.answered:
        return
    name = min(_NAME_MAX, max(columns(visible(label)) for label in ("undecided", *(share.label for share in part.shares))))
    for share in part.shares:
        interval = f"[{100 * share.low:.1f}, {100 * share.high:.1f}]"
        line = f"  {fitted(visible(share.label), name)} {share.rows:6,} {100 * share.share:6.1f} % {interval:14} "
        yield (line + _bar(share.share, width - len(line) - 1, hues[share.label], colour)).rstrip()
    if part.undecided:
        yield f"  {fitted('undecided', name)} {part.undecided:6,} {100 * part.undecided / part.answered:6.1f} %"


def _reasons(part: Part, hues: Hues, examples: Examples, width: int, colour: bool) -> Iterator[list[str]]:
    """A block for each label. All bars have one scale."""
    full = max((term.total for reasons in part.reasons for term in (*reasons.words, *reasons.phrases)), default=1.0)
    for reasons in part.reasons:
        lines = [_bold(f"What makes answers {visible(reasons.label)}", colour) + f" ({_rows(reasons.rows)})"]
        for what, terms, others in (("words", reasons.words, reasons.words_of), ("phrases", reasons.phrases, reasons.phrases_of)):
            head = f"  {fitted(f'{what} (of {others:,})', _TERM)}  rows      sum    mean  interval"
            lines += [head] if terms else [f"  {what}: none of {others:,}"]
            for place, term in enumerate(terms):
                lines.append(_term(term, full, hues[reasons.label], width, colour))
                if term.examples and place < EXAMPLES_SHOWN:
                    lines.append(Piece(_example(term, examples, width), dim=True).drawn(colour))
        yield lines


def _term(term: Term, full: float, hue: Hue, width: int, colour: bool) -> str:
    """A line. What rows like these may not have has an empty bar."""
    interval = "" if term.low is None or term.high is None else f"[{term.low:+.2f}, {term.high:+.2f}]"
    line = f"  {fitted(visible(term.text), _TERM)} {term.rows:5,} {term.total:+8.1f} {term.mean:+7.2f}  {interval:16} "
    return (line + _bar(term.total / full, width - columns(line) - 1, hue, colour, sure=_sure(term))).rstrip()


def _sure(term: Term) -> bool:
    return term.low is not None and term.low > 0


def _example(term: Term, examples: Examples, width: int) -> str:
    rows = f"    row{'s' if len(term.examples) > 1 else ''} {', '.join(f'{number:,}' for number in term.examples)}: "
    return rows + snippet(examples.get(term.examples[0], ""), term.text, max(10, width - len(rows)))


def _short(reasons: Reasons, hue: Hue, width: int, colour: bool) -> Iterator[str]:
    """What speaks for a label in a group, in few lines."""
    terms = sorted((*reasons.words, *reasons.phrases), key=lambda term: -term.total)[:GROUP_TERMS_SHOWN]
    if not terms:
        return
    said = ", ".join(f"{visible(term.text)} {term.total:+.1f} ({_rows(term.rows)}){'' if _sure(term) else '?'}" for term in terms)
    first, *others = wrap(f"  {visible(reasons.label)}: {said}", width, subsequent_indent="    ", break_on_hyphens=False)
    yield first.replace(visible(reasons.label), Piece(visible(reasons.label), LOGITS_FULL, hue).drawn(colour), 1)
    yield from others


def _remarks(found: Column, width: int) -> Iterator[str]:
    """What the numbers are, and which rows do not count."""
    part = found.whole
    left_out = {"NOT_FAITHFUL": part.not_faithful, "FLAT": part.flat, "the text of an earlier row": part.repeated}
    said = ", ".join(f"{_rows(count)} with {why}" for why, count in left_out.items() if count)
    remarks = [f"Not in the sums: {said}."] if said else []
    if found.limited:
        remarks.append(
            "There are more words, texts or groups than are kept: words and groups that came last are left out, repeated texts may count."
        )
    if part.answered:
        remarks += [
            "Shares have Wilson's 95 % intervals.",
            "Values are logits, of the label less the one that a row's explanation compares it with; 0 if within two standard errors.",
            f"Words and phrases of at least {ROWS_MIN} rows, by their sum. The interval is that of the mean for rows like these, by "
            "Student's t, widened because the largest are chosen: 5 % of a list miss on average. A bar of dots, and ?: it holds 0.",
        ]
    for remark in remarks:
        yield from wrap(remark, width, subsequent_indent="  ", break_on_hyphens=False)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _bar(share: float, most: int, hue: Hue, colour: bool, sure: bool = True) -> str:
    length = max(1, round(share * most)) if share > 0 else 0
    if not sure:
        return "." * length
    return Piece(" " * length, LOGITS_FULL, hue).drawn(True) if colour and length else "#" * length


def _bold(text: str, colour: bool) -> str:
    return Piece(text, bold=True).drawn(colour)
