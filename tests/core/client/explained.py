"""Messages of an explanation, made by hand: a text of four words in six tokens, two layers of two heads."""

from collections.abc import Iterator

import numpy as np

from sentiment.explain.encoding import Encoding, encode, tiles
from sentiment.v1 import sentiment_pb2 as pb

TEXT = "café 🙂 not good, rest"
READ = ("café", "🙂", "not", "good")
LAYERS, HEADS, TOKENS = 2, 2, 6
VALUES = (0.25, 0.0, -1.5, 3.0)


def span(start: int, end: int, text: str = TEXT) -> pb.Span:
    before, whole = text[:start], text[:end]
    utf16 = [len(part.encode("utf-16-le")) // 2 for part in (before, whole)]
    utf8 = [len(part.encode()) for part in (before, whole)]
    return pb.Span(
        code_point_start=start, code_point_end=end, utf16_start=utf16[0], utf16_end=utf16[1], byte_start=utf8[0], byte_end=utf8[1]
    )


def places() -> list[tuple[int, int]]:
    return [(TEXT.index(word), TEXT.index(word) + len(word)) for word in READ]


def header() -> pb.ExplanationHeader:
    message = pb.ExplanationHeader(
        model=pb.ModelId(name="tiny", version=1, digest="ab"),
        label="positive",
        truncated=True,
        labels_agree=True,
        logit=1.25,
        graph=pb.Graph(file="fp32.onnx", precision="fp32", provider="CPUExecutionProvider"),
        explain_provider="CUDAExecutionProvider",
    )
    message.prediction.label, message.prediction.score = "positive", 0.875
    message.prediction.scores.add(label="negative", score=0.125)
    message.prediction.scores.add(label="positive", score=0.875)
    message.tokens.add(piece="[CLS]", special=True, word=-1)
    for index, (start, end) in enumerate(places()):
        message.tokens.add(piece=READ[index], span=span(start, end), word=index, unknown=READ[index] == "🙂")
        message.words.add(span=span(start, end), token_start=index + 1, token_end=index + 2)
    message.tokens.add(piece="[SEP]", special=True, word=-1)
    message.unseen.add(span=span(TEXT.index(", rest"), len(TEXT)))
    return message


def attribution(method: str = "shapley", values: tuple[float, ...] = VALUES) -> pb.Attribution:
    message = pb.Attribution(method=method, special_total=0.5, unknown_total=0.25, steps=10, steps_asked=20)
    for index, (value, (start, end)) in enumerate(zip(values, places(), strict=True)):
        word = message.words.add(span=span(start, end), value=value)
        if index:
            word.standard_error = 0.125
    return message


def evidence(method: str = "shapley") -> pb.Evidence:
    return pb.Evidence(
        method=method,
        verdict=pb.VERDICT_BETTER_THAN_RANDOM,
        comprehensiveness=0.5,
        random_sets=19,
        p_value=0.05,
        words=1,
        rank=1,
        operator="attention_mask",
    )


def weights(layer: int, head: int) -> np.ndarray:
    drawn = np.random.default_rng(10 * layer + head).random((TOKENS, TOKENS), np.float32) ** 4
    return drawn / drawn.sum(1, keepdims=True)


def attention(encoding: Encoding, bytes_max: int = 60_000, aggregation: int = 0) -> Iterator[pb.ExplainResponse]:
    for layer, head in np.ndindex(LAYERS, HEADS):
        for tile in tiles(weights(layer, head), encoding, bytes_max=bytes_max):
            yield pb.ExplainResponse(
                tile=pb.AttentionTile(
                    layer=layer,
                    head=head,
                    aggregation=aggregation,
                    encoding=int(tile.encoding),
                    row_start=tile.row_start,
                    rows=tile.rows,
                    column_start=tile.column_start,
                    columns=tile.columns,
                    weights=tile.weights,
                    row_values=tile.row_values.tolist(),
                    error_max=tile.error_max,
                )
            )


def decoded(layer: int, head: int, encoding: Encoding) -> np.ndarray:
    from sentiment.explain.encoding import decode

    return decode(encode(weights(layer, head), encoding))


def geometry(golden: tuple[str, ...] = ("good", "bad", "movie")) -> Iterator[pb.ExplainResponse]:
    """Three layers. The words are close to good and bad in the embeddings, later to movie and bad."""
    for layer, nearest in enumerate(((0, 1), (2, 1), (2, 1))):
        yield pb.ExplainResponse(
            geometry=pb.WordGeometry(
                layer=layer,
                layers=2,
                points=np.arange(2 * len(READ)) + layer,
                golden=golden,
                golden_points=range(2 * len(golden)),
                variance=[0.5, 0.125],
                nearest=nearest * len(READ),
                cosines=[1 - layer / 8, -0.25] * len(READ),
            )
        )


def summary() -> pb.ExplainResponse:
    message = pb.ExplanationSummary(complete=False, notes=["shapley drew 10 of 20 orders"], served_rows=30, explanation_rows=4)
    message.run.FromMilliseconds(1500)
    return pb.ExplainResponse(summary=message)


def messages(*parts: pb.ExplainResponse) -> list[pb.ExplainResponse]:
    return [pb.ExplainResponse(header=header()), *parts, summary()]
