"""A Streamlit page: one text with what moved its answer, and a CSV file as table, chart and file. Run: streamlit run dashboard.py"""

import pandas as pd
import streamlit as st

from sentiment.client import CallFailed, Client

ROWS_MAX = 10_000


@st.cache_resource
def client() -> Client:
    """One client for all sessions; it is safe to share between threads."""
    return Client()


def one_text() -> None:
    """Answer and explain what is typed."""
    text = st.text_area("Text", "The acting was not good at all, but I loved the soundtrack.")
    if not text.strip():
        return
    answer = client().classify(text)
    st.metric("Undecided" if answer.abstain else answer.label.capitalize(), f"{answer.score:.1%}")
    if st.button("Explain"):
        explanation = client().explain(text)
        method, attribution = next(iter(explanation.attributions.items()))
        words = [f"{place}: {word.text}" for place, word in enumerate(explanation.words, 1)]
        against = f" rather than {explanation.against}" if explanation.against else ""
        moves = f"speaks for {explanation.explained}{against}, logits"
        st.bar_chart(pd.DataFrame({moves: attribution.words}, index=words), horizontal=True, sort=False)
        st.caption(f"{method}; evidence: {explanation.evidence[method].verdict}")


def file_of_texts() -> None:
    """Classify a column of an uploaded file."""
    file = st.file_uploader("CSV file", type="csv")
    if file is None:
        return
    table = pd.read_csv(file, nrows=ROWS_MAX)
    column = st.selectbox("Column of the texts", table.columns)
    answers = client().classify(table[column], progress=False).to_pandas()
    found = answers["label"].mask(answers["abstain"].fillna(False), "undecided").fillna("no answer")
    st.bar_chart(found.value_counts())
    shown = table.join(answers[["label", "score", "abstain", "error"]], rsuffix="_found")
    st.dataframe(shown)
    st.download_button("Save as CSV", shown.to_csv(index=False), "answers.csv", "text/csv")


st.title("Sentiment")
try:
    one_text()
    file_of_texts()
except CallFailed as error:
    st.error(f"No answer: {error}")
