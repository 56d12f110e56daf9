"""The page at /docs: lists the routes, sends requests, shows answers and errors; accessible, and under the viewer's policy."""

import json
import subprocess

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import RunningServer
from tests.viewer.conftest import Visit
from tests.viewer.texts import ATTACK

pytestmark = pytest.mark.needs_tool("chromium")


def sent(page: Page, route: str, body: object = None) -> str:
    """Send the request of a route; returns the answer, once it is whole."""
    section = page.locator(f"section#{route}")
    if body is not None:
        section.get_by_label("Body").fill(body if isinstance(body, str) else json.dumps(body))
    section.get_by_role("button", name="Send").click()
    expect(section.get_by_role("status")).to_contain_text("ms")
    return section.get_by_role("region", name="Answer").text_content() or ""


def test_each_route_is_listed_and_its_first_example_is_answered(visit: Visit, paired: RunningServer) -> None:
    page = visit(f"{paired.url}/docs", refused=True)
    document = json.loads(page.request.get(f"{paired.url}/openapi.json").body())

    listed = page.get_by_role("navigation", name="Routes").get_by_role("link")
    expect(listed).to_have_text([method.upper() + path for path, item in document["paths"].items() for method in item])
    for path, item in document["paths"].items():
        ((_, operation),) = item.items()
        section = page.locator(f"section#{operation['operationId']}")
        if "{name}" in path:
            section.get_by_label("name: ").fill("tiny")
        if "{version}" in path:
            section.get_by_label("version: ").fill("1")
        sent(page, operation["operationId"])
        # This server keeps no journal.
        expect(section.get_by_role("status")).to_contain_text("400" if path == "/v1/feedback" else "200 OK")


def test_an_answer_is_shown_with_its_request_id_and_the_command_that_asks_the_same(visit: Visit, paired: RunningServer) -> None:
    page = visit(f"{paired.url}/docs")

    answer = json.loads(sent(page, "classify", {"text": "it's good"}))

    section = page.locator("section#classify")
    expect(section.get_by_role("status")).to_contain_text("request id")
    command = section.get_by_role("region", name="Command").text_content()
    assert command is not None
    again = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=20).stdout)
    assert again["prediction"] == answer["prediction"]


def test_an_error_and_foreign_markup_are_shown_as_text(visit: Visit, paired: RunningServer) -> None:
    page = visit(f"{paired.url}/docs", refused=True)

    answer = json.loads(sent(page, "classify", {ATTACK: 1}))

    assert answer["error"]["message"].startswith("unknown field `")
    expect(page.locator("section#classify").get_by_role("status")).to_contain_text("400 Bad Request")
    assert "not valid JSON" in sent(page, "classifyBatch", "{")
    assert page.locator("img, iframe, script:not([src])").count() == 0


def test_lines_of_an_explanation_are_shown(visit: Visit, paired: RunningServer) -> None:
    page = visit(f"{paired.url}/docs")

    lines = [json.loads(line) for line in sent(page, "explain", {"text": "a good film"}).splitlines()]

    assert [next(iter(line)) for line in lines][:: len(lines) - 1] == ["header", "summary"]
