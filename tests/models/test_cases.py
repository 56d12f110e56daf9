"""The generator of cases: equal seeds, what is held out, minimal pairs, English, and the command."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from sentiment_models.cases.english import Noun, Typing, agreement, joined, sentence
from sentiment_models.cases.generate import COUNT_MAX, COUNT_MIN, HELD_OUT, PLAN, TRAIN, WORDS_MAX, WORDS_MIN, Case, generate
from sentiment_models.cases.grammar import NOUN_SLOTS, OF_KIND, VERB_FORMS, Table, Template, load
from sentiment_models.cli import main
from sentiment_models.data.labelled import read_examples
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.behaviours import behaviours
from sentiment_models.evaluation.behaviours import texts as behavioural_texts

GRAMMAR = load()
COUNT = 12_000
CASES = list(generate(GRAMMAR, seed=5, count=COUNT))
TRAINED = [case for case in CASES if case.split == TRAIN]
LABELS = ("negative", "positive")
# Every table of words, by name.
TABLES = {
    **{f"{name}: adjectives": kind.adjectives for name, kind in GRAMMAR.kinds.items()},
    **{f"{name}: events": kind.events for name, kind in GRAMMAR.kinds.items()},
    **GRAMMAR.tables,
}
# Tables with a sentiment whose words occur in no other sense.
POLAR = [table for table in TABLES.values() if table.known != table.held_out and any("|" in entry for entry in table.known)]


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text.lower())


def sides(entries: tuple[str, ...]) -> set[str]:
    """The words or phrases on both sides of the entries, each form of a verb apart."""
    each = [side.strip() for entry in entries for side in entry.split("|")]
    return {form for side in each for form in (side.split("/") if re.fullmatch(r"\w+(/\w+)+", side) else [side])}


def pairs() -> list[tuple[Case, Case]]:
    return list(zip(CASES[::2], CASES[1::2], strict=True))


def test_equal_seeds_give_equal_texts_and_others_give_others() -> None:
    first, again, other = ([case.json() for case in generate(GRAMMAR, seed, COUNT_MIN)] for seed in (1, 1, 2))

    assert first == again
    assert len(set(first) & set(other)) < COUNT_MIN / 20


def test_nothing_is_drawn_whose_sequence_may_change_with_the_release_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [case.json() for case in generate(GRAMMAR, 1, COUNT_MIN)]
    # random() is promised to give the same sequence in every release.
    for name in ("choice", "choices", "shuffle", "sample", "randrange", "randint", "getrandbits", "uniform"):
        monkeypatch.setattr(random.Random, name, None)

    assert [case.json() for case in generate(GRAMMAR, 1, COUNT_MIN)] == wanted


def test_the_requested_number_of_texts_is_made_half_of_each_label() -> None:
    assert len(CASES) == COUNT
    assert Counter(case.label for case in CASES) == dict.fromkeys(LABELS, COUNT // 2)
    assert 0.6 < len(TRAINED) / COUNT < 0.7
    assert len(list(generate(GRAMMAR, count=COUNT_MIN + 1))) == COUNT_MIN


def test_every_phenomenon_has_its_share_of_each_split_and_of_each_part_held_out() -> None:
    counts = Counter((case.phenomenon, case.held_out) for case in CASES)

    for phenomenon in GRAMMAR.phenomena:
        for parts, share in Counter(PLAN).items():
            assert counts[phenomenon.name, tuple(sorted(parts))] == pytest.approx(
                COUNT * share / len(PLAN) / len(GRAMMAR.phenomena), rel=0.1
            )


def test_held_out_domains_and_templates_are_never_trained_on_and_a_part_that_is_not_held_out_is_a_known_one() -> None:
    domains = {domain.name: domain.held_out for domain in GRAMMAR.domains}
    templates = {template.name: template.held_out for phenomenon in GRAMMAR.phenomena for template in phenomenon.templates}

    assert 3 <= sum(domains.values()) <= len(domains) / 2
    for case in CASES:
        assert domains[case.domain] == ("domain" in case.held_out)
        assert templates[case.template] == ("template" in case.held_out)
        assert case.split == (HELD_OUT if case.held_out else TRAIN)


def test_no_word_is_in_both_halves_of_the_lexicon_and_no_noun_in_two_domains() -> None:
    known = {word for table in POLAR for word in sides(table.known)}
    held_out = {word for table in POLAR for word in sides(table.held_out)}
    nouns = [{noun.word for scene in domain.scenes for noun in (scene.whole, *scene.parts)} for domain in GRAMMAR.domains]

    assert known & held_out == set()
    assert len(known) > 300
    assert len(held_out) > 300
    assert [one & other for one, other in combinations(nouns, 2) if one & other] == []


def test_no_word_with_a_sentiment_of_the_half_that_is_held_out_is_in_a_training_text() -> None:
    held_out = {word for table in POLAR for word in sides(table.held_out)}
    single = {word for word in held_out if re.fullmatch(r"[\w'-]+", word)}
    phrases = [word for word in held_out - single if "{" not in word and len(word) > 3]

    assert {word for case in TRAINED for word in words(case.text)} & single == set()
    together = "\n".join(case.text.lower() for case in TRAINED)
    assert re.findall(r"\b(?:" + "|".join(re.escape(phrase.lower()) for phrase in phrases) + r")\b", together) == []


def test_a_text_whose_lexicon_is_held_out_has_such_a_word() -> None:
    begins = {side.partition("{")[0].strip().lower().replace("'", "") for table in POLAR for side in sides(table.held_out)}

    for case in CASES:
        if "lexicon" in case.held_out:
            text = case.text.lower().replace("'", "")
            assert any(begin in text for begin in begins), text


def test_no_word_is_good_in_one_table_and_bad_in_another() -> None:
    good, bad = ({entry.split("|")[side] for table in POLAR for entry in table.known + table.held_out} for side in (0, 1))

    assert good & bad == set()


def test_every_slot_has_a_table_and_every_template_fits_a_scene_of_each_half_of_the_domains() -> None:
    slots = NOUN_SLOTS | OF_KIND.keys() | VERB_FORMS.keys() | GRAMMAR.tables.keys() | {"whole", "wnoun", "had"}
    for phenomenon in GRAMMAR.phenomena:
        assert phenomenon.rule
        for template_held_out in (False, True):
            templates = [template for template in phenomenon.templates if template.held_out == template_held_out]
            assert any(GRAMMAR.has_lexicon(template) for template in templates), phenomenon.name
        for template in phenomenon.templates:
            assert template.slots <= slots, template.name
            assert template.members[0] != template.members[1] or re.search(r"\{[+-]", template.text), template.name
            for held_out in (False, True):
                domains = [domain for domain in GRAMMAR.domains if domain.held_out == held_out]
                assert any(GRAMMAR.nouns(template, scene) for domain in domains for scene in domain.scenes), template.name


def test_a_pair_differs_in_its_label_and_agrees_in_everything_else() -> None:
    for positive, negative in pairs():
        assert (positive.label, negative.label) == ("positive", "negative")
        assert positive.text != negative.text
        parts = [(case.pair, case.phenomenon, case.template, case.domain, case.register, case.held_out) for case in (positive, negative)]
        assert parts[0] == parts[1]
    assert max(Counter(case.pair for case in CASES).values()) == 2


def test_the_texts_of_a_pair_share_all_but_what_the_template_changes() -> None:
    changing = {word for table in TABLES.values() for entry in table.known + table.held_out if "|" in entry for word in words(entry)}
    templates = {template.name: template for phenomenon in GRAMMAR.phenomena for template in phenomenon.templates}
    # The article follows what changes, and so do words that agree with the noun, which stand in alternatives as slots.
    follows = {"a", "an", "the", "it", "they", "them"} | {
        form for noun in ("", "*") for now in (False, True) for form in agreement(Noun.parse(noun), now).values()
    }
    for positive, negative in pairs():
        alternatives = " ".join(re.findall(r"\[[^\]]*\]", templates[positive.template].text))
        filled = " ".join(entry for slot in re.findall(r"\{(\w+)\}", alternatives) if slot in TABLES for entry in TABLES[slot].known)
        allowed = changing | follows | set(words(f"{alternatives} {filled}"))
        allowed |= {word.replace("'", "") for word in allowed}
        first, second = Counter(words(positive.text)), Counter(words(negative.text))
        assert (first - second).keys() | (second - first).keys() <= allowed, (positive.text, negative.text)


def test_every_phenomenon_occurs_in_every_domain_that_it_fits() -> None:
    found = {(case.phenomenon, case.domain) for case in CASES}

    fitting = {
        (phenomenon.name, domain.name)
        for phenomenon in GRAMMAR.phenomena
        for domain in GRAMMAR.domains
        if set(phenomenon.registers) & set(domain.registers)
    }
    assert found == fitting
    assert {case.register for case in CASES} == set(GRAMMAR.registers)


def test_no_two_texts_are_equal_even_without_case_and_punctuation() -> None:
    folded = Counter(" ".join(re.findall(r"[^\W_]+|[^\w\s.,!?'\"-]+", case.text.casefold())) for case in CASES)

    assert [text for text, times in folded.items() if times > 1] == []


def test_articles_capitals_spaces_and_lengths_are_sound_in_every_text() -> None:
    for case in CASES:
        text = case.text
        assert WORDS_MIN <= len(text.split()) <= WORDS_MAX
        assert not re.search(r"[{}\[\]|]|  | [,.;?!](?!\.)|,,|\.,|,\.|^ | $|\n|\t", text), text
        assert not re.search(r"\b[Aa] \"?(?!one|once)(?:[aio]|e(?!u)|u(?!s[ei]|ni[^mn]))\w", text), text
        assert not re.search(r"\b[Aa]n \"?(?:[^aeiouhL\"]|one|u(?:s[ei]|ni[^mn])|h(?!o[nu]|ei))", text), text
        if re.search(r"\b[A-Z][a-z]", text):
            assert re.match(r"[^a-z]", text), text
            assert not re.search(r"(?<!\.\.)[.!?] [a-z]", text), text
            assert not re.search(r"\bi\b(?!['\w])", text), text
        if case.register != "tweet":
            assert not text[0].islower(), text
            assert text.rstrip('"')[-1] in ".!?" or not text[-1].isalpha() or case.register == "ticket" or case.phenomenon == "emoji", text


def test_no_case_is_a_text_that_the_package_offers_or_judges_by() -> None:
    package = Path(__import__("sentiment_models").__file__).parent
    written = "\n".join(path.read_text(encoding="utf-8") for path in [package / "idioms.tsv", *(package / "texts").glob("*.tsv")])
    offered = {" ".join(words(line.partition("\t")[2])) for line in written.splitlines()}
    offered |= {" ".join(words(text)) for text in behavioural_texts(behaviours())}

    assert [case.text for case in CASES if " ".join(words(case.text)) in offered] == []


@pytest.mark.parametrize("count", [COUNT_MIN - 1, COUNT_MAX + 1])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ModelsError, match=f"must be 1,000 to 200,000, got {count:,}"):
        next(generate(GRAMMAR, count=count))


def test_a_grammar_with_too_few_texts_says_so() -> None:
    one = replace(
        GRAMMAR.phenomena[0],
        templates=tuple(replace(each, text="good [yes|no] and nothing else") for each in GRAMMAR.phenomena[0].templates),
    )
    domains = tuple(replace(domain, before=(), after=(), registers=("bare",)) for domain in GRAMMAR.domains)
    bare = replace(GRAMMAR.registers["review"], first=("",), last=("",))
    small = replace(GRAMMAR, phenomena=(replace(one, registers=("bare",)),), domains=domains, registers={"bare": bare})

    with pytest.raises(ModelsError, match="too few texts on plain: gave 2 texts of 1,000"):
        list(generate(small, count=1000))


def test_the_command_writes_files_that_train_and_evaluate_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cases", "--out", str(tmp_path / "new/cases"), "--seed", "3", "--count", "2000"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["phenomenon", "train", "held_out"]
    assert len(shown) == 2 + len(GRAMMAR.phenomena)
    total = {}
    for split in (TRAIN, HELD_OUT):
        path = tmp_path / "new/cases" / f"{split}.jsonl"
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        examples = list(read_examples(path, LABELS))
        assert [(LABELS[example.label], example.text, example.domain) for example in examples] == [
            (line["label"], line["text"], line["domain"]) for line in lines
        ]
        assert {line["split"] for line in lines} == {split}
        total[split] = len(lines)
    assert sum(total.values()) == 2000
    assert shown[-1].split() == ["all", f"{total[TRAIN]:,}", f"{total[HELD_OUT]:,}"]


@pytest.mark.parametrize(("count", "message"), [("999", "must be a whole number from 1000 to 200000"), ("many", "must be a whole number")])
def test_a_wrong_count_is_wrong_usage(count: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cases", "--out", str(tmp_path), "--count", count]) == 2

    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")

    assert main(["cases", "--out", str(tmp_path / "file/cases")]) == 1

    assert capsys.readouterr().err == f"error: {tmp_path}/file/cases: cannot be made: Not a directory\n"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a honest hotel and a useful app", "An honest hotel and a useful app"),
        ("it was a awful hour. a hour!", "It was an awful hour. An hour!"),
        ('i said: "a unique one." a euro', 'I said: "a unique one." A euro'),
        (
            "a one-sided plan, a union, a uninspired one, a unimpressive one",
            "A one-sided plan, a union, an uninspired one, an unimpressive one",
        ),
        ("i'm here, am i? yes", "I'm here, am I? Yes"),
        ('"so?" asked tom', '"So?" asked tom'),
    ],
)
def test_a_sentence_gets_its_articles_and_capitals(written: str, read: str) -> None:
    assert sentence(written) == read


def test_a_noun_agrees_in_number() -> None:
    one, many, mass = (agreement(Noun.parse(spec)) for spec in ("soup:dish", "noodles*:dish", "bread~:dish"))

    assert [form["this"] + " " + form["was"] for form in (one, many, mass)] == ["this soup was", "these noodles were", "this bread was"]
    assert [form["a"] + form["noun"] for form in (one, many, mass)] == ["a soup", "noodles", "bread"]


def test_a_sentence_that_ends_with_a_word_is_stopped_before_another_one() -> None:
    assert joined(["Got it", "Yes :D", "See #this", "Done!", "No"]) == "Got it. Yes :D See #this Done! No"


def test_a_tweet_is_typed_alike_throughout() -> None:
    text = "I'm in London. It isn't a big W :D."

    assert Typing()(text) == text
    assert Typing(lower=True)(text) == "i'm in london. it isn't a big W :D."
    assert Typing(lower=True, unstopped=True, plain=True)(text) == "im in london. it isnt a big W :D"


def test_a_template_gives_both_texts_of_a_pair_with_the_same_words() -> None:
    template = Template.parse("t/1", "(single) {the} {was} [not|] {-adj}, {good adj} and {bad adj}", held_out=False)

    assert template.needs == {"single"}
    assert template.members == ("{the} {was} not {-adj}, {good adj} and {bad adj}", "{the} {was}  {-adj}, {good adj} and {bad adj}")
    assert template.slots == {"the", "was", "adj"}


def test_a_table_is_halved_or_shared() -> None:
    assert Table.of(["a"]).half(held_out=True) == Table.of(["a"]).half(held_out=False) == ("a",)
    assert Table.of({"train": ["a"], "held_out": ["b"]}).half(held_out=True) == ("b",)
