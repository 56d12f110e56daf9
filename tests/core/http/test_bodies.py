"""What a body says, and how much of it is read at one go."""

import gzip
import json
import random
import tracemalloc
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentiment.doors.http.bodies import (
    INFLATED_BYTES,
    NUMBER_CHARS_MAX,
    VALUES_MAX,
    WHITE_SPACE_CHARS_MAX,
    batch_limits,
    inflated,
    message_of,
    text_limits,
)
from sentiment.doors.http.from_json import STRING_BYTES_MAX
from sentiment.errors import InvalidInput
from sentiment.v1 import sentiment_pb2 as pb

MIB = 2**20
LIMITS = text_limits(MIB, 4 * MIB)


def read(body: str) -> pb.ExplainRequest:
    return message_of(pb.ExplainRequest, body.encode(), LIMITS)


def refusal(body: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(body)
    return str(refused.value)


def words(values: str) -> str:
    return f'{{"text": "a", "options": {{"without": [{{"words": [{values}]}}]}}}}'


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


@pytest.mark.parametrize("padding", ["", " " * (NUMBER_CHARS_MAX + 1)], ids=["short", "long"])
def test_a_byte_order_mark_before_a_body_is_ignored(padding: str) -> None:
    assert read('\ufeff{"text": "\ufeffa"}' + padding).text == "\ufeffa"
    assert refusal("\ufeff") == "the body is empty; it must be a JSON object"


@pytest.mark.parametrize("name", ["text", "text_pair", "textPair", "model", "truncation", "label"])
@pytest.mark.parametrize("value", ["\\ud800", "a\\udc00", "\\ude00\\ud83d"])
def test_a_lone_surrogate_is_refused_by_its_field(name: str, value: str) -> None:
    said = refusal(f'{{"{name}": "{value}"}}')

    assert said.startswith(f"{name}: ")
    assert "lone surrogate" in said or r"`\ud" in said or r"`a\udc00`" in said or r"`\ude00" in said


@pytest.mark.parametrize(
    ("body", "kind"), [("null", "null"), ("5", "a number"), ("[]", "an array"), ('""', "a string"), ("true", "a boolean")]
)
def test_a_body_that_is_not_an_object_is_refused(body: str, kind: str) -> None:
    assert refusal(body) == f"the body must be an object, got {kind}"


@pytest.mark.parametrize("unit", ["1", '"a"', "[]", "{}", '{"a": 1}', "[1, 1]"])
def test_nothing_is_read_after_the_last_value_that_is_allowed(unit: str) -> None:
    assert refusal("[" + f"{unit}," * VALUES_MAX + "nonsense") == f"the body has more than {VALUES_MAX} values"


def test_members_are_counted_before_their_object_ends() -> None:
    assert refusal("{" + '"a": 1,' * VALUES_MAX + "nonsense") == f"the body has more than {VALUES_MAX} values"


def test_the_largest_allowed_number_of_values_is_read() -> None:
    # Objects: the body, options, the set. Members: text, options, without, the set, words.
    most = VALUES_MAX - 8

    assert len(read(words(",".join(["1"] * most))).options.without[0].words) == most
    assert refusal(words(",".join(["1"] * (most + 1)))) == f"the body has more than {VALUES_MAX} values"


@pytest.mark.parametrize(("body", "at"), [('{"model": "%s"}', "model"), ('{"options": {"methods": ["a", "%s"]}}', "options.methods[1]")])
def test_strings_other_than_texts_have_a_short_limit(body: str, at: str) -> None:
    longest = "é" * (STRING_BYTES_MAX // 2)

    assert refusal(body % (longest + "é")) == f"{at}: has 4098 bytes; the limit is 4096"
    read(body % longest)


@pytest.mark.parametrize("body", ['{"%s": 1}', '{"truncation": "%s"}', '{"options": {"%s": {}}}'])
def test_an_error_quotes_only_the_beginning_of_a_name(body: str) -> None:
    assert "`" + "x" * 64 + "`" in refusal(body % ("x" * MIB))


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


def test_a_message_has_a_limit_of_its_own() -> None:
    message = pb.ClassifyRequest(text="good")
    body, size = b'{"text": "good"}', message.ByteSize()

    assert message_of(pb.ClassifyRequest, body, LIMITS._replace(message_bytes_max=size)) == message
    with pytest.raises(InvalidInput, match=f"the message has {size} bytes; the limit is {size - 1}"):
        message_of(pb.ClassifyRequest, body, LIMITS._replace(message_bytes_max=size - 1))


def test_white_space_in_a_text_is_the_texts() -> None:
    assert read(json.dumps({"text": "a" + " " * MIB})).text == "a" + " " * MIB


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"txt": "a"}', "unknown field `txt`; fields are text, text_pair, model, truncation, label, options, target"),
        (
            '{"options": {"attention": {"topp": 1}}}',
            "options.attention: unknown field `topp`; fields are layers, heads, encoding, aggregation, top_p",
        ),
        ('{"options": {"without": [{"words": [1]}, {"word": 1}]}}', "options.without[1]: unknown field `word`; fields are words"),
        ('{"text": 3}', "text: must be a string, got a number"),
        ('{"text": ["secret"]}', "text: must be a string, got an array"),
        ('{"options": {"methods": {"secret": "secret"}}}', "options.methods: must be an array, got an object"),
        ('{"options": {"methods": [null]}}', "options.methods[0]: must be a string, got null"),
        ('{"options": "secret"}', "options: must be an object, got a string"),
        ('{"options": {"heads": 1}}', "options.heads: must be true or false, got a number"),
        ('{"options": {"bytes_max": "secret"}}', "options.bytes_max: must be a whole number, got a string"),
        ('{"options": {"bytes_max": true}}', "options.bytes_max: must be a whole number, got a boolean"),
        ('{"options": {"bytesMax": 1.5}}', "options.bytesMax: must be a whole number from -2147483648 to 2147483647"),
        ('{"options": {"bytesMax": 2147483648}}', "options.bytesMax: must be a whole number from -2147483648 to 2147483647"),
        ('{"options": {"bytes_max": 1e999}}', "options.bytes_max: must be a whole number from -2147483648 to 2147483647"),
        ('{"options": {"attention": {"top_p": NaN}}}', "options.attention.top_p: must be a number from -3.4028235e38 to 3.4028235e38"),
        ('{"text_pair": "a", "textPair": "b"}', "textPair: must be given once; it is also given as text_pair"),
        ('{"text": "a", "text": "b"}', "the body has an object with the same name twice"),
        ("", "the body is empty; it must be a JSON object"),
        ('{"text": "secret}', "the body of 17 bytes is not valid JSON: Unterminated string starting at: line 1 column 10 (char 9)"),
    ],
)
def test_an_error_says_in_words_of_json_what_is_wrong_and_where(body: str, says: str) -> None:
    assert refusal(body) == says


def test_an_unknown_option_is_refused_with_the_valid_ones() -> None:
    said = "truncation: must be one of refuse, head, head_tail, windows; got `%s`"

    for wrong in ("tail", "WINDOWS", "Truncation_Windows", "unspecified", "bulk", ""):
        assert refusal(json.dumps({"truncation": wrong})) == said % wrong


def test_an_option_has_a_short_name_beside_its_full_one() -> None:
    short = {"truncation": "windows", "options": {"attention": {"encoding": "top_p", "aggregation": "rollout_value_norms"}}}
    full = {
        "truncation": "TRUNCATION_WINDOWS",
        "options": {"attention": {"encoding": "ATTENTION_ENCODING_TOP_P", "aggregation": "ATTENTION_AGGREGATION_ROLLOUT_VALUE_NORMS"}},
    }

    assert read(json.dumps(short)) == ParseDict(full, pb.ExplainRequest())


def batch(body: str) -> pb.ClassifyBatchRequest:
    return message_of(pb.ClassifyBatchRequest, body.encode(), batch_limits(1024, 16, MIB))


def test_an_item_may_be_its_text() -> None:
    found = batch('{"items": ["a", {"text": "b", "text_pair": "c"}, ""], "priority": "bulk", "effort": "full"}')

    items = [pb.Item(text="a"), pb.Item(text="b", text_pair="c"), pb.Item()]
    assert found == pb.ClassifyBatchRequest(items=items, priority=pb.PRIORITY_BULK, effort=pb.EFFORT_FULL)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("3", "items[1]: must be a string or an object, got a number"),
        ("null", "items[1]: must be a string or an object, got null"),
        ('["a"]', "items[1]: must be a string or an object, got an array"),
        ('"\\ud800"', "items[1].text: has a lone surrogate at character 0, which is not valid Unicode"),
        ('{"txt": "a"}', "items[1]: unknown field `txt`; fields are text, text_pair, targets"),
    ],
)
def test_an_item_that_is_neither_a_text_nor_an_object_is_refused(item: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        batch(f'{{"items": ["a", {item}]}}')

    assert str(refused.value) == says


def test_only_an_item_may_be_its_text() -> None:
    assert refusal('"a"') == "the body must be an object, got a string"
    assert refusal('{"options": {"without": ["a"]}}') == "options.without[0]: must be an object, got a string"


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.floats(),
    st.sampled_from(["a", "5", "-7", "5.0", "1e2", "x5", "0.25", "TRUNCATION_HEAD", "ATTENTION_ENCODING_U8", "\ud800", "é"]),
)


def objects(descriptor: Any, depth: int = 3) -> st.SearchStrategy[Any]:  # Any: a Descriptor; JSON
    """JSON objects that often fit a message: values of the right and of other types, under both names of a field."""
    members = []
    for field in descriptor.fields:
        value = SCALARS
        if field.message_type is not None and depth:
            value = st.one_of(objects(field.message_type, depth - 1), SCALARS)
        if field.is_repeated:
            value = st.one_of(st.lists(value, max_size=3), SCALARS)
        members += [st.tuples(st.sampled_from([field.name, field.json_name]), value)]
    members.append(st.tuples(st.just("nosuch"), SCALARS))
    return st.lists(st.one_of(members), max_size=4).map(dict)


@given(objects(pb.ExplainRequest.DESCRIPTOR))
@example({"truncation": -(2**32) + 4})
@settings(max_examples=300)
def test_bodies_are_read_and_refused_as_by_protobufs_parser(values: dict[str, Any]) -> None:
    try:
        expected = ParseDict(values, pb.ExplainRequest())
    except Exception:  # of many kinds
        expected = None
    try:
        found = read(json.dumps(values))
    except InvalidInput:
        found = None

    if found is not None:
        assert found == expected
    else:
        assert expected is None or stricter(values), values


def stricter(values: Any) -> bool:  # Any: JSON
    """Whether only our reader refuses something in it: a field under both names, or an option that is not a 32-bit integer."""
    if isinstance(values, list):
        return any(map(stricter, values))
    if not isinstance(values, dict):
        return False
    twice = {
        name for name in values if name != (camel := name.split("_")[0] + "".join(map(str.title, name.split("_")[1:]))) and camel in values
    }
    options = [values.get(name) for name in ("truncation", "encoding", "aggregation")]
    wide = [option for option in options if isinstance(option, int) and not -(2**31) <= option < 2**31]
    numbers = [option for option in options if isinstance(option, bool | float) or option in ("5", "-7")]
    return bool(twice or wide or numbers) or any(map(stricter, values.values()))


def test_the_longest_texts_fit_as_common_writers_encode_them() -> None:
    body = json.dumps({"text": "é" * (MIB // 2), "text_pair": "\U0001f600" * (MIB // 4)})

    assert len(body) <= LIMITS.bytes_max


def test_the_largest_batch_fits_as_common_writers_encode_it() -> None:
    limits = batch_limits(1024, 16, 4 * MIB)
    items = [{"text": "я" * 1000, "text_pair": "я" * 1000} for _ in range(1024)]
    body = json.dumps({"items": items, "model": "english/2"}, indent=4).encode()

    assert len(message_of(pb.ClassifyBatchRequest, body, limits).items) == 1024
    assert len(body) <= limits.bytes_max


def test_the_largest_configurable_batch_has_room_for_its_values() -> None:
    limits = batch_limits(100_000, 16, 2**28)
    body = json.dumps({"items": [{"text": "a", "text_pair": "b"}] * 100_000}).encode()

    assert len(message_of(pb.ClassifyBatchRequest, body, limits).items) == 100_000


def test_a_batch_has_room_for_the_targets_of_every_item() -> None:
    limits = batch_limits(4096, 16, 4 * MIB)
    body = json.dumps({"items": [{"text": "a", "targets": [str(number) for number in range(16)]}] * 4096}).encode()

    assert len(message_of(pb.ClassifyBatchRequest, body, limits).items) == 4096


def test_the_error_of_an_item_names_it() -> None:
    with pytest.raises(InvalidInput) as refused:
        message_of(pb.ClassifyBatchRequest, b'{"items": [{"text": "a"}, {"text": 1}]}', batch_limits(1024, 16, MIB))

    assert refused.value.field == "items[1].text"


@pytest.mark.parametrize("size", [0, 1, INFLATED_BYTES - 1, INFLATED_BYTES, INFLATED_BYTES + 1, 5 * INFLATED_BYTES])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_a_compressed_body_is_what_it_was(size: int, level: int) -> None:
    body = random.Random(size).randbytes(size // 2) + b" " * (size - size // 2)

    assert inflated(gzip.compress(body, level, mtime=0), size) == body


def test_a_bomb_is_refused_within_the_memory_of_its_limit() -> None:
    bomb = gzip.compress(bytes(256 * MIB), 9)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=f"once decompressed, than the limit of {MIB}"):
            inflated(bomb, MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(bomb) < MIB
    assert peak < 4 * MIB


@pytest.mark.parametrize("length", [*range(1, 39), -1])
def test_a_part_of_a_compressed_body_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match="ends before its gzip stream"):
        inflated(gzip.compress(b'{"text": "good"}' * 9, mtime=0)[:length], MIB)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no gzip", "not valid gzip"),
        (gzip.compress(b"{}", mtime=0)[:-8] + bytes(8), "not valid gzip"),
        (gzip.compress(b"{}", mtime=0) + b"more", "bytes after the end"),
        (gzip.compress(b"{}", mtime=0) * 2, "bytes after the end"),
        (b"", "ends before"),
    ],
)
def test_a_body_that_is_not_one_gzip_stream_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        inflated(body, MIB)
