"""One session of the Streamlit page without a browser; prints what it shows as JSON. Arguments: the page, a CSV file."""

import json
import os
import sys
from pathlib import Path

import streamlit as st
from streamlit.testing.v1 import AppTest

page = AppTest.from_file(sys.argv[1], default_timeout=120).run()
page.text_area[0].set_value("good film").run()
page.button[0].click().run()
first = {"label": page.metric[0].label, "score": page.metric[0].value, "evidence": [caption.value for caption in page.caption]}
page.file_uploader[0].set_value(("reviews.csv", Path(sys.argv[2]).read_bytes(), "text/csv")).run()
table = page.dataframe[0].value
os.environ["SENTIMENT_TARGET"] = "127.0.0.1:1"
st.cache_resource.clear()
page.run()
assert not page.exception, page.exception
print(json.dumps({**first, "table": json.loads(table.to_json(orient="records")), "errors": [error.value for error in page.error]}))
