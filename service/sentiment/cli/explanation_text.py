"""An explanation as text for a terminal: the text in colours, the words' values, and the evidence for them. Pure."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

import numpy as np
import numpy.typing as npt

from sentiment.cli.terminal import Hues, Piece, bar, direction_hues, flowed, legend
from sentiment.client.explanations import Attention, Attribution, Counterfactual, Evidence, Explanation, Heads, Neuron, Word, WordGeometry
from sentiment.files.visible import columns, fitted, visible

WORDS_SHOWN = 20
# A text with more words shows its sentences, and the largest words in each: a list of single words tells little of it. The longest
# sentence of the default model's study has as many.
SHORT_WORDS_MAX = 41
SENTENCES_SHOWN = 5
SENTENCE_WORDS_SHOWN = 5
LINKS_SHOWN = 10
HEADS_SHOWN = 10
SET_SHOWN = 12
# From the proto: with a larger error, the view does not show what the model did.
NEURON_ERROR_MAX = 1e-5
# From the proto: there is no verdict with fewer sets, and a text with fewer words does not have so many.
RANDOM_SETS = 19
EVIDENCE_WORDS_MIN = 7
UNSEEN_SHOWN = 60
_WORD_WIDTH = 22
_BAR_HALF_MAX = 20


def page(explanation: Explanation, *, colour: bool, width: int) -> str:
    """The page, in lines of at most ``width`` columns (at least 64); only longer words exceed them."""
    width = max(64, width)
    first = next(iter(explanation.attributions.values()), None)
    blocks: list[list[str]] = [_answer(explanation, width, colour)]
    for pair, text in enumerate((explanation.text, explanation.text_pair)):
        if text is not None:
            blocks.append(flowed(_atoms(explanation, bool(pair), text, first, colour), width, colour))
    if first is not None:
        blocks.append([*_directions(explanation, width, colour)])
    for method, attribution in explanation.attributions.items():
        blocks.append([*_attribution(explanation, attribution, width, colour)])
        if method in explanation.evidence:
            blocks.append(_evidence(explanation.evidence[method], len(explanation.words), width, _moved(explanation)))
    if explanation.counterfactuals:
        blocks.append([line for found in explanation.counterfactuals for line in _wrapped(_counterfactual(explanation, found), width)])
    if explanation.heads is not None:
        blocks.append([*_heads(explanation.heads, _explained(explanation), width)])
    if explanation.attention is not None:
        blocks.append([*_attention(explanation, explanation.attention, width)])
    if explanation.neuron is not None:
        blocks.append([*_neuron(explanation, explanation.neuron, width)])
    if explanation.geometry:
        blocks.append([*_geometry(explanation, width)])
    blocks.append(_end(explanation, width))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _answer(explanation: Explanation, width: int, colour: bool) -> list[str]:
    undecided = "  (undecided)" if explanation.abstain else ""
    answer = Piece(f"{visible(explanation.label)} {explanation.score:.4f}", bold=True).drawn(colour)
    lines = [f"{answer}{undecided}  {visible(explanation.model.name)}/{explanation.model.version}"]
    others = [f"{visible(label)} {score:.4f}" for label, score in explanation.scores.items() if label != explanation.label]
    lines += _wrapped(f"other labels: {', '.join(others)}", width) if len(others) > 1 else []
    lines += _wrapped(f"explained: {_explained(explanation)}, {explanation.logit:+.3f}", width)
    if not explanation.labels_agree:
        lines += _wrapped(
            "note: the explanation graph gives another answer to this text; gradients, attention and heads explain that one", width
        )
    return lines


def _explained(explanation: Explanation) -> str:
    """The name of what is explained."""
    less = "" if explanation.against is None else f" minus that of {visible(explanation.against)}"
    return f"the logit of {visible(explanation.explained)}{less}"


def _atoms(explanation: Explanation, pair: bool, text: str, found: Attribution | None, colour: bool) -> Iterator[list[Piece]]:
    """The text between spaces: words, signs beside them, and parts that were not read."""
    parts: list[tuple[int, int, int | None]] = [
        (*word.span.code_points, index) for index, word in enumerate(explanation.words) if word.pair == pair
    ]
    parts += [(*part.span.code_points, None) for part in explanation.unseen if part.pair == pair]
    atom: list[Piece] = []
    hues = _hues(explanation)
    place = 0
    for start, end, word in [*sorted(parts, key=lambda part: part[:2]), (len(text), len(text), -1)]:
        for sign in text[place:start]:
            if not sign.isspace():
                atom.append(Piece(visible(sign), dim=True))
            elif atom:
                yield atom
                atom = []
        if word is None:
            if atom:
                yield atom
                atom = []
            yield from _unseen(text[start:end])
        elif word >= 0:
            value = 0.0 if found is None else float(found.words[word])
            shown = visible(text[max(place, start) : end])
            number = f"[{value:+.2f}]" if not colour and abs(value) >= 0.005 else ""
            atom.append(Piece(shown + number, value, hues.of(value)))
        place = max(place, end)
    if atom:
        yield atom


def _unseen(text: str) -> Iterator[list[Piece]]:
    stripped = " ".join(text.split())
    if stripped:
        cut = stripped if len(stripped) <= UNSEEN_SHOWN else stripped[:UNSEEN_SHOWN] + "..."
        for part in f"[not read, {len(text):,} characters: {visible(cut)}]".split():
            yield [Piece(part, dim=True)]


def _directions(explanation: Explanation, width: int, colour: bool) -> Iterator[str]:
    """The meaning of the colours, and their scale."""
    hues = _hues(explanation)
    yield legend(colour, hues)
    other = _other(explanation)
    against = f"against {visible(explanation.explained)}" if other is None else f"towards {visible(other)}"
    towards = f"towards {visible(explanation.explained)}"
    signs = (hues.against.name, hues.towards.name) if colour else ("-", "+")
    yield from _wrapped(f"{signs[0]}: {against}; {signs[1]}: {towards}", width)


def _other(explanation: Explanation) -> str | None:
    """The label that values below zero speak for; None: all others."""
    others = [label for label in explanation.scores if label != explanation.explained]
    return others[0] if len(others) == 1 else explanation.against


def _hues(explanation: Explanation) -> Hues:
    return direction_hues(tuple(explanation.scores), explanation.explained, _other(explanation))


def _attribution(explanation: Explanation, found: Attribution, width: int, colour: bool) -> Iterator[str]:
    fewer = f" of {found.steps_asked}" if found.steps < found.steps_asked else ""
    unit = {"integrated_gradients": " steps", "shapley": " orders", "two_step_shapley": " orders"}.get(found.method)
    yield f"{found.method}{f', {found.steps}{fewer}{unit}' if unit else ''}, in logits"
    order = _by_size(found.words)
    sentences = _sentences(explanation, found)
    if sentences:
        yield "  sentences by size, with their share of all sizes, and the largest words of each"
        total = sum(abs(value) for value, _ in sentences) or 1.0
        for value, words in sentences[:SENTENCES_SHOWN]:
            yield f"  {value:+8.3f} {abs(value) / total:4.0%}  {fitted(_written(explanation, words), width - 18)}".rstrip()
            yield from _words(explanation, found, words[_by_size(found.words[words])][:SENTENCE_WORDS_SHOWN], width, colour)
        order = np.concatenate([words for _, words in sentences[SENTENCES_SHOWN:]] or [order[:0]])
    else:
        yield from _words(explanation, found, order[:WORDS_SHOWN], width, colour)
        order = order[WORDS_SHOWN:]
    yield from _totals(explanation, found, order, len(sentences[SENTENCES_SHOWN:]))


def _by_size(values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The indices of values by descending size."""
    return np.argsort(-np.abs(values), kind="stable")


def _sentences(explanation: Explanation, found: Attribution) -> list[tuple[float, npt.NDArray[np.int64]]]:
    """The value and the words of each sentence of a long text, by size; none if there is one, or if the values sum to nothing."""
    numbers = np.array([word.sentence for word in explanation.words])
    if found.residual is None or len(numbers) <= SHORT_WORDS_MAX or numbers[0] == numbers[-1]:
        return []
    members = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    values = np.array([found.words[words].sum() for words in members])
    return [(float(values[place]), members[place]) for place in _by_size(values).tolist()]


def _written(explanation: Explanation, words: npt.NDArray[np.int64]) -> str:
    """The part of the text from the first of these words to the last."""
    first, last = explanation.words[words[0]], explanation.words[words[-1]]
    text = explanation.text_pair if first.pair else explanation.text
    assert text is not None
    return visible(text[first.span.code_points[0] : last.span.code_points[1]])


def _words(explanation: Explanation, found: Attribution, indices: npt.NDArray[np.int64], width: int, colour: bool) -> Iterator[str]:
    """The values of words, with bars."""
    sampled = bool((found.standard_errors > 0).any())
    hues = _hues(explanation)
    half = min(_BAR_HALF_MAX, (width - _WORD_WIDTH - 14 - 9 * sampled) // 2)
    for index in indices.tolist():
        word = explanation.words[index]
        error = float(found.standard_errors[index])
        deviation = f" {f'+-{error:.3f}' if error > 0 else '':8}" if sampled else ""
        yield f"  {_name(word)} {found.words[index]:+8.3f}{deviation} {bar(float(found.words[index]), half, colour, hues)}".rstrip()


def _name(word: Word) -> str:
    second = " (2nd text)" if word.pair else ""
    return fitted(visible(word.text), _WORD_WIDTH - len(second)) + second


def _totals(explanation: Explanation, found: Attribution, rest: npt.NDArray[np.int64], sentences: int) -> Iterator[str]:
    """What no row above has: the words ``rest``, which are those of so many ``sentences`` unless that is 0, and what belongs to no word."""
    others = f"{sentences} other sentences" if sentences else f"{len(rest)} other words"
    totals = [(others, float(found.words[rest].sum()), "")] if len(rest) else []
    totals += [("special tokens", found.special_total, "belong to no word")]
    if any(token.unknown for token in explanation.tokens):
        totals += [("unknown to the model", found.unknown_total, "included in the words above")]
    if explanation.unseen:
        totals += [("not read", found.unseen_total, "no effect")]
    if found.residual is not None:
        totals += [("residual", found.residual, "sum minus expected sum")]
    for title, value, remark in totals:
        yield f"  {fitted(title, _WORD_WIDTH)} {value:+8.3f}  {remark}".rstrip()


def _moved(explanation: Explanation) -> str:
    """What the probabilities of evidence are of, and which way they count, after "probability".

    The words ranked first speak for the explained label if it wins, and against it otherwise: without them its probability rises then.
    """
    against = explanation.against
    of = "" if against is None else f" of {visible(explanation.explained)} rather than {visible(against)}"
    wins = explanation.explained == explanation.label if against is None else explanation.logit > 0
    return f"{of} {'lost' if wins else 'gained'}"


def _evidence(found: Evidence, words: int, width: int, moved: str = " lost") -> list[str]:
    first = f"the {found.words} words ranked first" if found.words > 1 else "the word ranked first"
    sets = f"{found.random_sets} random sets of as many" if found.random_sets != 1 else "another set of as many"
    p = f"(p = {found.p_value:.2g})"
    few = f"it takes {RANDOM_SETS} random sets to tell, and there was time for {found.random_sets}"
    if words < EVIDENCE_WORDS_MIN:
        few = f"the text is too short to tell: it takes {EVIDENCE_WORDS_MIN} words"
    as_much = f"{found.rank - 1} of {sets} move the answer at least as much as leaving {first} out {p}"
    plain = {
        "BETTER_THAN_RANDOM": f"leaving {first} out moves the answer more than any of {sets} {p}",
        "INCONCLUSIVE": few if found.random_sets < RANDOM_SETS else as_much,
        "NOT_FAITHFUL": f"most of {sets} move the answer more than leaving {first} out {p}: do not rely on these values",
        "FLAT": "the words together move the probability by less than 0.05: too little to judge a ranking by",
    }.get(found.verdict, "")
    agreement = "" if found.agreement is None else f"; agreement with an unrelated method {found.agreement:+.2f}"
    others = f" (random sets: median {found.random_median:+.3f})" if found.random_sets else ""
    numbers = f"probability{moved} without them {found.comprehensiveness:+.3f}{others}, with them alone {found.sufficiency:+.3f}{agreement}"
    return [*_wrapped(f"evidence: {found.verdict}: {plain}", width), *_wrapped(numbers, width, "  ")]


def _counterfactual(explanation: Explanation, found: Counterfactual) -> str:
    limits = "; time or rows ran out" if found.stopped else ""
    if not found.found:
        explained = visible(explanation.explained)
        # A label that is explained and is not the answer is to become it.
        goal = "changes the answer" if explanation.explained == explanation.label else f"makes {explained} the answer"
        what = f"whose removal {goal}" if found.kind == "flip" else f"that alone make {explained} the answer"
        return f"no words found {what}{limits}"
    named = [f'"{visible(explanation.words[index].text)}"' for index in found.words]
    more = f" and {len(named) - SET_SHOWN} more" if len(named) > SET_SHOWN else ""
    words = " ".join(named[:SET_SHOWN]) + more
    answer = f"{visible(found.label)} {found.score:.2f}"
    if found.kind == "asked":
        return f"without {words}, as asked: {answer}"
    smallest = "no smaller set does it" if found.exhaustive_below >= len(found.words) else "each of them is needed" if found.minimal else ""
    remark = f" ({smallest}{limits})" if smallest and found.words else ""
    if not found.words:
        return f"without any word: {answer}" if found.kind == "flip" else f"no word is needed; without words: {answer}"
    return f"without {words}: {answer}{remark}" if found.kind == "flip" else f"{words} alone: {answer}{remark}"


def _heads(found: Heads, explained: str, width: int) -> Iterator[str]:
    how = "measured" if found.exact else "estimated from the gradient, because time was short"
    yield from _wrapped(f"heads: change of {explained} when a head is switched off, {how}; and where it looks", width)
    order = np.argsort(-np.abs(found.gated), axis=None, kind="stable")
    for place in order[:HEADS_SHOWN].tolist():
        layer, head = (int(axis) for axis in np.unravel_index(place, found.gated.shape))
        name = found.labels[layer][head]
        pattern = found.patterns.get(name)
        lift = f" (lift {pattern.lift[layer, head]:.2f})" if pattern is not None and pattern.lift is not None else ""
        yield f"  layer {layer:2} head {head:2} {found.gated[layer, head]:+8.3f}  {visible(name)}{lift}"
    if found.all_uniform is not None:
        changed = "and changes the answer" if found.all_uniform_changes_label else "and keeps the answer"
        yield from _wrapped(f"without any learned attention the logit changes by {found.all_uniform:+.3f}, {changed}", width, "  ")


def _attention(explanation: Explanation, found: Attention, width: int) -> Iterator[str]:
    """The strongest links to words. In maps of CLS rows each row is a head, and the reader is the token that the classifier uses."""
    rows = "; a row is a head, in the order asked for" if found.aggregation == "cls_rows" else ""
    yield from _wrapped(
        f"attention ({found.aggregation}, {found.encoding}, error at most {found.error_max:.2g}): where heads look, not what moved the "
        f"answer; of each map the strongest links to other words{rows}",
        width,
    )
    names = [text for text, _, _ in explanation.sides]
    special = np.array([is_special for _, is_special, _ in explanation.sides])
    each = -(-LINKS_SHOWN // max(1, len(found.maps)))
    links: list[tuple[float, int, int, int, int]] = []
    for (layer, head), weights in found.maps.items():
        among = np.where(special, 0, weights)
        if found.aggregation != "cls_rows":
            among = np.where(np.eye(*among.shape, dtype=np.bool_) | special[:, np.newaxis], 0, among)
        for place in np.argsort(-among, axis=None, kind="stable")[:each].tolist():
            row, column = divmod(place, among.shape[1])
            links.append((float(among[row, column]), layer, head, row, column))
    for weight, layer, head, row, column in sorted(links, key=lambda link: -link[0])[:LINKS_SHOWN]:
        if weight > 0:
            reader = f"row {row}" if found.aggregation == "cls_rows" else visible(names[row])
            where = " ".join(f"{name} {number:2}" for name, number in (("layer", layer), ("head", head)) if number >= 0) or "all layers"
            yield f"  {weight:.3f}  {where:16} {fitted(reader, 20)} -> {visible(names[column])}"


def _neuron(explanation: Explanation, found: Neuron, width: int) -> Iterator[str]:
    """The tokens with the largest weights of one token, and their scores before softmax."""
    looking = visible(explanation.tokens[found.token].piece)
    yield from _wrapped(f"neuron view: where token {found.token} ({looking}) looks in layer {found.layer}, head {found.head}", width)
    for place in np.argsort(-found.softmax, kind="stable")[:LINKS_SHOWN].tolist():
        piece = visible(explanation.tokens[found.key_start + place].piece)
        yield f"  {found.softmax[place]:.3f}  score {found.score[place]:+8.3f}  {piece}"
    if found.max_abs_error > NEURON_ERROR_MAX:
        yield from _wrapped(f"differs from the model by up to {found.max_abs_error:.1g}", width, "  ")


def _geometry(explanation: Explanation, width: int) -> Iterator[str]:
    """The golden words closest to each word, in the embeddings and after the last layer."""
    yield from _wrapped(
        "geometry: the words of the model's golden texts closest to each word, by cosine in all dimensions; not what moved the answer",
        width,
    )
    shown = {"embeddings": explanation.geometry[0], "last layer": explanation.geometry[-1]}
    each = (width - _WORD_WIDTH - 2) // len(shown) - 2
    yield _row(" " * _WORD_WIDTH, shown, each)
    for index, word in enumerate(explanation.words[:WORDS_SHOWN]):
        yield _row(_name(word), (_closest(found, index, each) for found in shown.values()), each)
    if len(explanation.words) > WORDS_SHOWN:
        yield f"  {len(explanation.words) - WORDS_SHOWN} other words"


def _row(name: str, cells: Iterable[str], each: int) -> str:
    return "  ".join(["", name, *(fitted(cell, each) for cell in cells)]).rstrip()


def _closest(found: WordGeometry, word: int, width: int) -> str:
    """As many golden words as fit, each after its cosine; the first in any case."""
    cell = ""
    for text, cosine in found.nearest_words(word):
        longer = f"{cell}  {cosine:.2f} {visible(text)}".lstrip()
        if cell and columns(longer) > width:
            break
        cell = longer
    return cell


def _end(explanation: Explanation, width: int) -> list[str]:
    summary = explanation.summary
    notes = [line for note in summary.notes for line in _wrapped(f"note: {visible(note)}", width)]
    rows = f"{summary.served_rows:,} rows on the served graph, {summary.explanation_rows:,} on the explanation graph"
    # A server of an earlier release does not say where they ran.
    where = f"; answer and evidence: {explanation.precision} on {explanation.provider}" if explanation.provider else ""
    if explanation.explain_provider not in ("", explanation.provider):
        where += f"; explanation graph: {explanation.explain_provider}"
    return [*notes, *_wrapped(f"{rows}, {summary.run_s:.2f} s{where}", width)]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return wrap(text, width, initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False)
