"""What a body says, and how much of it is read at one go."""

import json
from json import encoder
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson, ParseDict, ParseError

from sentiment.api.http import bodies
from sentiment.api.http.bodies import NUMBER_CHARS_MAX, STRING_BYTES_MAX, VALUES_MAX, WHITE_SPACE_CHARS_MAX, body_bytes_max, message_of
from sentiment.errors import InvalidInput
from sentiment.v1 import sentiment_pb2 as pb
from sentiment.viewer.proto_json import json_line, json_line_in_steps

MESSAGE_BYTES_MAX = 4 * 2**20
MIB = 2**20


def read(body: str) -> pb.ExplainRequest:
    return message_of(pb.ExplainRequest, body.encode(), MESSAGE_BYTES_MAX)


def refusal(body: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(body)
    return str(refused.value)


def words(values: str) -> str:
    return f'{{"text": "a", "options": {{"without": [{{"words": [{values}]}}]}}}}'


def strings(value: Any) -> list[str]:  # Any: JSON
    return list(bodies._strings(value))


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"text": null}',
        '{"text": "text"}',
        '{"text": "\\ud83d\\ude00 \\u00e9 \\n \\"q\\" あ"}',
        '{"text": "a", "text_pair": ""}',
        '{"text_pair": "b", "textPair": null}',
        '{"text": "textPair", "text_pair": "text", "model": "text"}',
        ' {"text" :\n\t"a" , "truncation": "TRUNCATION_HEAD", "label": "b", "options": {"evidence": false, "bytesMax": "70000"} } ',
        '{"truncation": 2, "options": {"without": [{"words": [1, "2", 3.0, 4e0]}, {}], "methods": ["m"], "attention": {"topP": 0.9}}}',
    ],
)
def test_a_good_body_is_read_as_by_protobufs_own_parser(body: str) -> None:
    assert read(body) == ParseDict(json.loads(body), pb.ExplainRequest())


@pytest.mark.parametrize("name", ["text", "text_pair", "textPair"])
def test_texts_are_not_given_to_parse_dict(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    given: list[str] = []
    text = "é" * (MIB // 2)

    def parse_dict(values: Any, message: Any) -> Any:  # JSON; of any message
        given.extend(strings(values))
        return ParseDict(values, message)

    monkeypatch.setattr(bodies, "ParseDict", parse_dict)
    parsed = read(json.dumps({name: text}))

    assert text in (parsed.text, parsed.text_pair)
    assert max(map(len, given)) < STRING_BYTES_MAX


@pytest.mark.parametrize("name", ["text", "text_pair", "textPair"])
@pytest.mark.parametrize("text", ["\\ud800", "a\\udc00", "\\ude00\\ud83d"])
def test_a_lone_surrogate_in_a_text_has_the_error_of_parse_dict(name: str, text: str) -> None:
    body = f'{{"{name}": "{text}"}}'
    with pytest.raises(ParseError) as told:
        ParseDict(json.loads(body), pb.ExplainRequest())

    assert refusal(body).endswith(str(told.value))


@pytest.mark.parametrize("body", ['{"truncation": "\\ud800"}', '{"\\ud800": 1}', '{"model": "\\ud800"}'])
def test_a_lone_surrogate_elsewhere_is_the_callers_fault(body: str) -> None:
    assert refusal(body) == "the body is not valid UTF-8: a lone surrogate"


@pytest.mark.parametrize("body", ["null", "5", "[]", '""', "true"])
def test_a_body_that_is_no_object_is_refused(body: str) -> None:
    assert refusal(body).endswith("in JSON: expected a JSON object")


@pytest.mark.parametrize("unit", ["1", '"a"', "[]", "{}", '{"a": 1}', "[1, 1]"])
def test_nothing_is_read_after_the_last_value_that_is_allowed(unit: str) -> None:
    assert refusal("[" + f"{unit}," * VALUES_MAX + "nonsense") == f"the body has more than {VALUES_MAX} values"


def test_members_are_counted_before_their_object_ends() -> None:
    assert refusal("{" + '"a": 1,' * VALUES_MAX + "nonsense") == f"the body has more than {VALUES_MAX} values"


def test_as_many_values_as_are_allowed_are_read() -> None:
    # Objects: the body, options, the set. Members: text, options, without, the set, words.
    most = VALUES_MAX - 8

    assert len(read(words(",".join(["1"] * most))).options.without[0].words) == most
    assert refusal(words(",".join(["1"] * (most + 1)))) == f"the body has more than {VALUES_MAX} values"


@pytest.mark.parametrize(
    "body", ['{"model": "%s"}', '{"%s": 1}', '{"truncation": "%s"}', '{"options": {"methods": ["%s"]}}', '{"text": ["%s"]}']
)
def test_strings_other_than_texts_have_a_short_limit(body: str) -> None:
    longest = "é" * (STRING_BYTES_MAX // 2)

    assert "a string other than text and text_pair has 4098 bytes; the limit is 4096" in refusal(body % (longest + "é"))
    assert read(f'{{"model": "{longest}"}}').model == longest


@pytest.mark.parametrize("digit", ["1", "٣"])
@pytest.mark.parametrize("body", ["%s", '{"options": %s}', "[-1%s]", words("1, 1.%s")])
def test_long_numbers_are_refused(digit: str, body: str) -> None:
    assert f"a number has more characters than the limit of {NUMBER_CHARS_MAX}" in refusal(body % ("1" + digit * NUMBER_CHARS_MAX))
    assert read(words("1." + "0" * (NUMBER_CHARS_MAX - 2))).options.without[0].words == [1]


@pytest.mark.parametrize(
    "body",
    [
        '{"options": {"methods": [%s]}}',
        "%s{}",
        "{}%s",
        "{%s}",
        '{"text":%s"a"}',
        '{"text"%s:"a"}',
        '{"text":"a"%s}',
        '{"text": "a",%s"model": ""}',
    ],
)
def test_white_space_between_values_is_short(body: str) -> None:
    most = "\n \t\r" * (WHITE_SPACE_CHARS_MAX // 4)

    read(body % most[2:])
    assert f"more characters than the limit of {WHITE_SPACE_CHARS_MAX}" in refusal(body % (most + "   "))


def test_white_space_in_a_text_is_the_texts() -> None:
    assert read(json.dumps({"text": "a" + " " * MIB})).text == "a" + " " * MIB


def test_an_error_does_not_quote_what_it_is_about() -> None:
    assert "which is an object at" in refusal('{"options": {"methods": {"secret": "secret"}}}')


def test_what_common_writers_make_of_the_longest_texts_fits() -> None:
    body = json.dumps({"text": "é" * (MIB // 2), "text_pair": "\U0001f600" * (MIB // 4)})

    assert len(body) <= body_bytes_max(2**20)


def test_a_large_answer_is_the_same_without_the_encoder_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pb.ClassifyResponse(prediction=pb.Prediction(label='é"\n', score=1 / 3, scores=[pb.LabelScore(score=1e-9)]), tokens=5)
    expected = MessageToJson(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None)
    assert json_line(answer) == expected

    monkeypatch.setattr(encoder, "c_make_encoder", lambda *_: pytest.fail("one call of C code"))
    assert json_line_in_steps(answer) == expected
