"""An explanation as text for a terminal: the text in colours, the words' values, and the evidence for them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

import numpy as np
import numpy.typing as npt

from sentiment.cli.terminal import LOGITS_FULL, Hues, Piece, bar, direction_hues, flowed, label_hues, legend
from sentiment.client.explanations import (
    Attention,
    Attribution,
    Counterfactual,
    DecidingWords,
    Evidence,
    Explanation,
    Heads,
    Neuron,
    SentenceValue,
    Word,
    WordGeometry,
)
from sentiment.client.results import marks_of
from sentiment.explain.methods.registry import REGISTRY
from sentiment.explain.wording import (
    EVIDENCE_WORDS_MIN,
    RANDOM_SETS,
    SENTENCE_SHARE,
    SENTENCE_WORD_MIN,
    SET_SHOWN,
    TEMPLATES,
    ZERO_ERRORS,
    say,
)
from sentiment.files.visible import columns, fitted, visible

WORDS_SHOWN = 20
SENTENCES_SHOWN = 5
SENTENCE_WORDS_SHOWN = 5
LINKS_SHOWN = 10
HEADS_SHOWN = 10
# From the proto: with a larger error, the view does not show what the model did.
NEURON_ERROR_MAX = 1e-5
UNSEEN_SHOWN = 60
_WORD_WIDTH = 22
_BAR_HALF_MAX = 20


def page(explanation: Explanation, *, colour: bool, width: int) -> str:
    """The page, in lines of at most ``width`` columns (at least 64); only longer words exceed them."""
    width = max(64, width)
    first = next(iter(explanation.attributions.values()), None)
    blocks: list[list[str]] = [_wrapped(visible(explanation.reason), width), _answer(explanation, width, colour)]
    for pair, text in enumerate((explanation.text, explanation.text_pair)):
        if text is not None:
            blocks.append(flowed(_atoms(explanation, bool(pair), text, first, colour), width, colour))
    if first is not None:
        blocks.append([*_directions(explanation, width, colour, first)])
    if explanation.deciding is not None and explanation.deciding.changing_words:
        blocks.append(_wrapped(_changing(explanation, explanation.deciding), width))
    for method, attribution in explanation.attributions.items():
        blocks.append([*_attribution(explanation, attribution, width, colour)])
        if method in explanation.evidence:
            blocks.append(_evidence(explanation.evidence[method], len(explanation.words), width, _moved(explanation)))
            if attribution is first and explanation.deciding is not None:
                blocks.append(_wrapped(_deciding(explanation, explanation.deciding), width))
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
    hues = label_hues(tuple(explanation.scores))

    def named(label: str) -> Piece:
        return Piece(visible(label), LOGITS_FULL, hues[label]) if label in hues else Piece(visible(label))

    score = Piece(f"{explanation.score:.4f}", bold=True).drawn(colour)
    towards = "" if explanation.target is None else f"towards {visible(explanation.target)}  "
    model = f"{visible(explanation.model.name)}/{explanation.model.version}"
    lines = [f"{named(explanation.label).drawn(colour)} {score}{undecided}  {towards}{model}"]
    others = [label for label in explanation.scores if label != explanation.label]
    if len(others) > 1:
        ends = [f" {explanation.scores[label]:.4f}{'' if label == others[-1] else ','}" for label in others]
        said = ([named(label), Piece(end)] for label, end in zip(others, ends, strict=True))
        lines += flowed([[Piece("other labels:")], *said], width, colour)
    lines += _wrapped(say("explained", logit=_explained(explanation), value=f"{explanation.logit:+.3f}"), width)
    if not explanation.labels_agree:
        lines += _wrapped(
            "note: the explanation graph gives another answer to this text; gradients, attention and heads explain that one", width
        )
    if explanation.adaptive is not None:
        found = explanation.adaptive
        answer = f"{visible(found.label)} {found.score:.4f}" + "".join(f" ({mark})" for mark in marks_of(found))
        lines += _wrapped(say("adaptive", answer=answer), width)
    return lines


def _explained(explanation: Explanation) -> str:
    """The name of what is explained."""
    against = explanation.against or ""
    return say("logit_against" if against else "logit", label=visible(explanation.explained), against=visible(against))


def _atoms(explanation: Explanation, pair: bool, text: str, found: Attribution | None, colour: bool) -> Iterator[list[Piece]]:
    """The text between spaces: words, the mention of a target, signs beside them, and parts that were not read."""
    parts: list[tuple[int, int, int | None]] = [
        (*word.span.code_points, index) for index, word in enumerate(explanation.words) if word.pair == pair
    ]
    parts += [(*part.span.code_points, None) for part in explanation.unseen if part.pair == pair]
    atom: list[Piece] = []
    hues, told = _hues(explanation), None if found is None else _told(explanation, found)
    tints = np.zeros(len(explanation.words))
    ends: dict[int, SentenceValue] = {}
    for sentence, words in [] if found is None else _sentences(explanation, found):
        tints[words] = np.clip(_told_sentence(sentence) * SENTENCE_SHARE, -1, 1)
        ends |= {int(words[-1]): sentence} if _told_sentence(sentence) and not colour else {}
    place = 0
    named = range(0) if explanation.mention is None else range(*explanation.mention.code_points)
    for start, end, word in [*sorted(parts, key=lambda part: part[:2]), (len(text), len(text), -1)]:
        for at, sign in enumerate(text[place:start], place):
            if not sign.isspace():
                atom.append(Piece(visible(sign), dim=at not in named, bold=at in named))
            elif atom:
                yield atom
                atom = []
        if word is None:
            if atom:
                yield atom
                atom = []
            yield from _unseen(text[start:end])
        elif word >= 0:
            value = 0.0 if told is None else float(told[word])
            # In a sentence that is coloured, larger words stand out.
            value *= abs(value) > SENTENCE_WORD_MIN or not (found and found.sentences)
            shown = visible(text[max(place, start) : end])
            number = f"[{value:+.2f}]" if not colour and abs(value) >= 0.005 else ""
            value += float(tints[word])
            atom.append(Piece(shown + number, value, hues.of(value)))
            if word in ends:
                atom.append(Piece(f"[sentence {ends[word].value:+.2f}]"))
        place = max(place, end)
    if atom:
        yield atom


def _unseen(text: str) -> Iterator[list[Piece]]:
    stripped = " ".join(text.split())
    if stripped:
        cut = stripped if len(stripped) <= UNSEEN_SHOWN else stripped[:UNSEEN_SHOWN] + "..."
        for part in f"[not read, {len(text):,} characters: {visible(cut)}]".split():
            yield [Piece(part, dim=True)]


def _told(explanation: Explanation, found: Attribution) -> npt.NDArray[np.floating]:
    """The values of words; 0 for those that cannot be told from zero. Those of unknown errors stay.

    Where sentences have values, also 0 for words without a value of their own, and for those of a sentence that cannot be told from zero.
    """
    told = np.where(np.abs(found.words) <= ZERO_ERRORS * found.standard_errors, 0.0, found.words)
    for sentence, words in _sentences(explanation, found):
        if not (sentence.words_valued and _told_sentence(sentence)):
            told[words] = 0.0
    return told


def _told_sentence(found: SentenceValue) -> float:
    """The value of a sentence; 0 if it cannot be told from zero."""
    return 0.0 if abs(found.value) <= ZERO_ERRORS * (found.standard_error or 0.0) else found.value


def _directions(explanation: Explanation, width: int, colour: bool, found: Attribution | None = None) -> Iterator[str]:
    """The meaning of the colours, and their scale. ``found``: what is coloured."""
    hues = _hues(explanation)
    yield legend(colour, hues)
    other = _other(explanation)
    against = say("towards" if other else "against", label=visible(other or explanation.explained))
    towards = say("towards", label=visible(explanation.explained))
    signs = (hues.against.name, hues.towards.name) if colour else ("-", "+")
    said = [f"{signs[0]}: {against}", f"{signs[1]}: {towards}"]
    if found is not None and found.sentences:
        said.append(say("sentences_coloured" if colour else "sentences_numbered", least=f"{SENTENCE_WORD_MIN:.2f}"))
    if found is not None and _untold(explanation, found):
        said.append(say("unmarked", sign="uncoloured" if colour else "no number"))
    if found is not None and np.isnan(found.standard_errors).any():
        said.append(say("errors_unknown"))
    yield from _wrapped("; ".join(said), width)


def _untold(explanation: Explanation, found: Attribution) -> bool:
    """Whether the value of any word cannot be told from zero; of any sentence, where they have values."""
    if found.sentences:
        return any(_told_sentence(one) != one.value for one in found.sentences)
    return bool((_told(explanation, found) != found.words).any())


def _other(explanation: Explanation) -> str | None:
    """The label that values below zero speak for; None: all others."""
    others = [label for label in explanation.scores if label != explanation.explained]
    return others[0] if len(others) == 1 else explanation.against


def _hues(explanation: Explanation) -> Hues:
    return direction_hues(tuple(explanation.scores), explanation.explained, _other(explanation))


def _attribution(explanation: Explanation, found: Attribution, width: int, colour: bool) -> Iterator[str]:
    unit = REGISTRY[found.method].unit if found.method in REGISTRY else ""
    took = "method_exact" if not found.steps_asked else "method_fewer_steps" if found.steps < found.steps_asked else "method_steps"
    yield say(took if unit else "method", method=found.method, steps=found.steps, asked=found.steps_asked, unit=unit)
    order = _by_size(found.words)
    sentences = _sentences(explanation, found)
    if sentences:
        yield "  sentences by size, and the largest words of those that count"
        told = _told(explanation, found)
        for one, words in sentences[:SENTENCES_SHOWN]:
            error = f"+-{one.standard_error:.3f}" if one.standard_error else ""
            yield f"  {one.value:+8.3f} {error:8}  {fitted(_written(explanation, one), width - 21)}".rstrip()
            largest = [int(word) for word in words[_by_size(told[words])][:SENTENCE_WORDS_SHOWN] if told[word]]
            yield from _words(explanation, found, largest, width, colour)
        order = np.concatenate([words for _, words in sentences[SENTENCES_SHOWN:]] or [order[:0]])
    else:
        yield from _words(explanation, found, order[:WORDS_SHOWN].tolist(), width, colour)
        order = order[WORDS_SHOWN:]
    yield from _totals(explanation, found, order, len(sentences[SENTENCES_SHOWN:]))


def _by_size(values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The indices of values by descending size."""
    return np.argsort(-np.abs(values), kind="stable")


def _sentences(explanation: Explanation, found: Attribution) -> list[tuple[SentenceValue, npt.NDArray[np.int64]]]:
    """The sentences that have values, by size, each with its words."""
    starts = np.array([(word.pair, word.span.code_points[0]) for word in explanation.words])

    def words(one: SentenceValue) -> npt.NDArray[np.int64]:
        first, end = one.span.code_points
        return np.flatnonzero((starts[:, 0] == one.pair) & (starts[:, 1] >= first) & (starts[:, 1] < end))

    order = _by_size(np.array([one.value for one in found.sentences]))
    return [(found.sentences[place], words(found.sentences[place])) for place in order.tolist()]


def _written(explanation: Explanation, found: SentenceValue) -> str:
    """The text of a sentence."""
    text = explanation.text_pair if found.pair else explanation.text
    assert text is not None
    return visible(text[slice(*found.span.code_points)])


def _words(explanation: Explanation, found: Attribution, indices: Iterable[int], width: int, colour: bool) -> Iterator[str]:
    """The values of words, with bars."""
    sampled = bool((found.standard_errors > 0).any())
    hues, told = _hues(explanation), _told(explanation, found)
    half = min(_BAR_HALF_MAX, (width - _WORD_WIDTH - 14 - 9 * sampled) // 2)
    for index in indices:
        word = explanation.words[index]
        error = float(found.standard_errors[index])
        deviation = f" {f'+-{error:.3f}' if error > 0 else '':8}" if sampled else ""
        yield f"  {_name(word)} {found.words[index]:+8.3f}{deviation} {bar(float(told[index]), half, colour, hues)}".rstrip()


def _name(word: Word) -> str:
    second = say("second_text") if word.pair else ""
    return fitted(visible(word.text), _WORD_WIDTH - len(second)) + second


def _totals(explanation: Explanation, found: Attribution, rest: npt.NDArray[np.int64], sentences: int) -> Iterator[str]:
    """Rows for the remaining words ``rest`` (of the remaining ``sentences`` if there are any) and for values of no word."""
    others = say("other_sentences", count=sentences) if sentences else say("other_words", count=len(rest))
    totals = [(others, float(found.words[rest].sum()), "")] if len(rest) else []
    belonging = {"special": found.special_total}
    if any(token.unknown for token in explanation.tokens):
        belonging["unknown"] = found.unknown_total
    if explanation.unseen:
        belonging["unread"] = found.unseen_total
    if found.residual is not None:
        belonging["residual"] = found.residual
    totals += [(say(key), value, say(f"{key}_remark")) for key, value in belonging.items()]
    for title, value, remark in totals:
        yield f"  {fitted(title, _WORD_WIDTH)} {value:+8.3f}  {remark}".rstrip()


def _moved(explanation: Explanation) -> str:
    """What the probabilities of evidence are of, and which way they count, after "probability".

    The words ranked first speak for the explained label if it wins, and against it otherwise: without them its probability rises then.
    """
    against = explanation.against
    wins = explanation.explained == explanation.label if against is None else explanation.logit > 0
    key = f"{'lost' if wins else 'gained'}{'' if against is None else '_against'}"
    return say(key, label=visible(explanation.explained), against=visible(against or ""))


def _evidence(found: Evidence, words: int, width: int, moved: str = " lost") -> list[str]:
    parts = {
        "first": say("ranked_first", count=found.words),
        "sets": say("random_sets", count=found.random_sets),
        "chance": say("chance", p=f"{found.p_value:.2g}"),
    }
    if found.verdict == "INCONCLUSIVE" and found.random_sets < RANDOM_SETS:
        short = words < EVIDENCE_WORDS_MIN
        plain = say("too_short", least=EVIDENCE_WORDS_MIN) if short else say("too_few_sets", least=RANDOM_SETS, count=found.random_sets)
    else:
        plain = say(found.verdict, count=found.rank - 1, **parts) if found.verdict in TEMPLATES else ""
    agreement = "" if found.agreement is None else f"; agreement with an unrelated method {found.agreement:+.2f}"
    others = f" (random sets: median {found.random_median:+.3f})" if found.random_sets else ""
    without = f"{say('probability_without', moved=moved)} {found.comprehensiveness:+.3f}{others}"
    numbers = f"{without}, with them alone {found.sufficiency:+.3f}{agreement}"
    return [*_wrapped(f"evidence: {found.verdict}: {plain}", width), *_wrapped(numbers, width, "  ")]


def _deciding(explanation: Explanation, found: DecidingWords) -> str:
    """What the test says of the words that a search found to decide the answer."""
    count = len(found.words)
    searched = say("searched", count=count, words=_quoted(explanation, found.words))
    if found.verdict == "INCONCLUSIVE" and found.random_sets < RANDOM_SETS:
        return f"{searched}; {say('too_few_sets', least=RANDOM_SETS, count=found.random_sets)}."
    parts = {"sets": say("random_sets", count=found.random_sets), "chance": say("chance", p=f"{found.p_value:.2g}")}
    key = f"replaced_{found.verdict}"
    if key not in TEMPLATES:
        return f"{searched}."
    return f"{searched}; {say('replaced', count=count)} {say(key, count=found.rank - 1, **parts)}."


def _changing(explanation: Explanation, found: DecidingWords) -> str:
    """The fewest words found without which the answer is another."""
    words, answer = _quoted(explanation, found.changing_words), f"{visible(found.label)} {found.score:.2f}"
    return say("changing", count=len(found.changing_words), total=len(explanation.words), words=words, answer=answer)


def _quoted(explanation: Explanation, words: Sequence[int]) -> str:
    """Words in quotes, at most twelve of them and how many more there are."""
    named = [f'"{visible(explanation.words[index].text)}"' for index in words]
    return " ".join(named[:SET_SHOWN]) + (say("more_words", count=len(named) - SET_SHOWN) if len(named) > SET_SHOWN else "")


def _counterfactual(explanation: Explanation, found: Counterfactual) -> str:
    limits = say("out_of_time") if found.stopped else ""
    flips = found.kind == "flip"
    if not found.found:
        label = visible(explanation.explained)
        # A label that is explained and is not the answer is to become it.
        goal = say("changes_answer" if explanation.explained == explanation.label else "makes_answer", label=label)
        return say("none_flips" if flips else "none_keeps", goal=goal, label=label, limits=limits)
    words = _quoted(explanation, found.words)
    answer = f"{visible(found.label)} {found.score:.2f}"
    if found.kind == "asked":
        return f"without {words}, as asked: {answer}"
    if not found.words:
        return say("flips_empty" if flips else "keeps_empty", answer=answer)
    smallest = "no_smaller" if found.exhaustive_below >= len(found.words) else "all_needed" if found.minimal else ""
    remark = say(smallest, limits=limits) if smallest else ""
    return say("flips" if flips else "keeps", words=words, answer=answer, remark=remark)


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
