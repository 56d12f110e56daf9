"""Attention tables of the page match those of the server and the client."""

import numpy as np
import pytest

from sentiment.client import AttentionOptions, Client, ExplainOptions
from tests.conftest import RunningServer
from tests.viewer.conftest import Visit
from tests.viewer.texts import MIXED

pytestmark = pytest.mark.needs_tool("chromium")

# A step of a byte for a row whose largest weight is 1: weights are rounded so that rows keep their sums.
PIECE_ERROR = 1 / 255
# The page's own modules, asked for the maps of a text.
TABLES = """async ([text, encoding, level, special]) => {
  const {Explanation} = await import("/viewer/explanation.js");
  const body = JSON.stringify({text, options: {attention: {encoding: `ATTENTION_ENCODING_${encoding}`}}});
  const answer = await fetch("/v1/explain", {method: "POST", body});
  const explanation = new Explanation(text, null);
  for (const line of (await answer.text()).split("\\n").filter(Boolean)) explanation.take(JSON.parse(line));
  const {maps} = explanation;
  const tables = [];
  for (let layer = 0; layer < maps.layers; layer += 1) {
    for (let head = 0; head < maps.heads; head += 1) tables.push([...maps.table(layer, head, level, special).weights]);
  }
  return {units: maps.units(level, special).map(({text}) => text), heads: maps.heads, tables, bytes: maps.bytes, size: maps.size};
}"""


@pytest.mark.parametrize("encoding", ["U8", "FP32"])
@pytest.mark.parametrize(("level", "special"), [("pieces", True), ("words", True), ("words", False)])
def test_tables_match_the_servers_maps(
    visit: Visit, english: RunningServer, reader: Client, encoding: str, level: str, special: bool
) -> None:
    aggregation = {"pieces": "maps", "words": "words"}[level]
    found = reader.explain(MIXED, options=ExplainOptions(attention=AttentionOptions(encoding="fp32", aggregation=aggregation)))
    kept = [place for place, (_, is_special, _) in enumerate(found.sides) if special or not is_special]
    page = visit(english.url)

    shown = page.evaluate(TABLES, [MIXED, encoding, level, special])

    assert shown["units"] == [found.sides[place][0] for place in kept]
    pieces = max(word.token_end - word.token_start for word in found.words) if level == "words" else 1
    for place, table in enumerate(shown["tables"]):
        weights = found.attention.maps[divmod(place, shown["heads"])][np.ix_(kept, kept)]
        assert np.array(table) == pytest.approx(weights.ravel(), abs=pieces * PIECE_ERROR if encoding == "U8" else 1e-5)
    if encoding == "U8":
        # A byte a weight.
        assert shown["bytes"] == 72 * (shown["size"] * shown["size"] + 4 * shown["size"])
