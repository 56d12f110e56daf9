"""Texts whose wrong answer a user notices at once, answered by the default bundle. A report, not a condition."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from sentiment import Local
from sentiment.client import Classification

TEXTS = Path(__file__).with_name("noticed.tsv")


def test_texts_whose_wrong_answer_is_noticed_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with TEXTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    with Local("english") as local:
        answers = local.classify_batch([row["text"] for row in rows])

    right, kinds = Counter[str](), Counter(row["kind"] for row in rows)
    wrong: list[str] = []
    for row, answer in zip(rows, answers, strict=True):
        assert isinstance(answer, Classification)
        found = answer.decision()
        if found in row["right"].split("|"):
            right[row["kind"]] += 1
        else:
            wrong.append(f"{row['kind']}: {row['text']!r} is {found} ({answer.score:.2f}), not {row['right']}")
    with capsys.disabled():
        print("", *wrong, *(f"{kind}: {right[kind]} of {count}" for kind, count in kinds.items()), sep="\n")
        print(f"{right.total()} of {len(rows)} texts whose wrong answer is noticed are right")
    assert right.total() + len(wrong) == len(rows)
