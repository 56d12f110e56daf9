"""What IPython shows of results and models: short lines in a terminal, small tables in a notebook, and nothing of the server's as HTML."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from sentiment.client import Client, Explanation, Results
from sentiment.client.notebook import table
from sentiment.v1 import sentiment_pb2 as pb

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def shown(shell: InteractiveShell, value: Any) -> dict[str, str]:
    formatted, _ = shell.display_formatter.format(value)
    return formatted


def test_models_show_a_line_and_a_table_instead_of_their_card(client: Client, shell: InteractiveShell) -> None:
    one, listed = shown(shell, client.get_model()), shown(shell, client.list_models())

    assert one["text/plain"] == "Model(tiny/1 (default), labels=['negative', 'positive'])"
    assert listed["text/plain"] == "ListModelsResponse(tiny/1 (default))"
    for said in (one, listed):
        assert (
            "<th>tiny/1 (default)</th><td>negative, positive</td><td>at most 32</td><td>no</td><td>no</td><td>fp32</td>"
            in said["text/html"]
        )


def test_models_are_printed_as_a_line(client: Client) -> None:
    assert f"{client.get_model()}" == repr(client.get_model()) == "Model(tiny/1 (default), labels=['negative', 'positive'])"
    assert f"{client.list_models()}" == repr(client.list_models()) == "ListModelsResponse(tiny/1 (default))"


def test_results_show_a_summary_and_their_first_rows(client: Client, shell: InteractiveShell) -> None:
    said = shown(shell, client.classify(["good", "", *["bad"] * 1000]))

    assert said["text/plain"] == "Results(1,002 texts: 1,000 negative, 1 positive, 1 failed)"
    html = said["text/html"]
    assert html.count("<tr>") == 11
    assert "and 992 more" in html
    assert "INVALID_ARGUMENT: text: has 0 characters" in html
    assert "<td>positive</td><td>0.8808</td>" in html


def test_an_answer_shows_its_scores(client: Client, shell: InteractiveShell) -> None:
    said = shown(shell, client.classify("good"))

    assert said["text/plain"] == "Classification(label='positive', score=0.8808, scores={'negative': 0.1192, 'positive': 0.8808})"
    assert re.findall(r"<th>(\w+)</th><td>([\d.]+)</td>", said["text/html"]) == [("negative", "0.1192"), ("positive", "0.8808")]


def test_nothing_of_a_server_is_read_as_html(client: Client) -> None:
    answer = client.classify("good")
    hostile = replace(answer, label=HOSTILE, scores={HOSTILE: 1.0}, model=replace(answer.model, name=HOSTILE))
    model = pb.Model(id=pb.ModelId(name=HOSTILE), labels=[HOSTILE], explanation_methods=[HOSTILE])
    model.accuracy.add(dataset=HOSTILE)
    model.classify_graph.precision = HOSTILE

    pages = [hostile._repr_html_(), Results([hostile, answer])._repr_html_(), table(model)]

    for page in pages:
        assert "<script" not in page
        assert "&lt;script&gt;" in page


def test_an_explanation_is_one_short_line(client: Client) -> None:
    explanation = client.explain("a good film")

    assert isinstance(explanation, Explanation)
    assert len(repr(explanation)) < 140
