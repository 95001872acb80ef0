"""The official client for Python against a gateway; the models are those of crates/cli/tests/clients/upstream.rs."""

import json
import os
import time
import urllib.request

import openai

MODEL = os.environ["MODEL"]
MESSAGES = [{"role": "user", "content": "Say hello."}]


def client(key=os.environ["API_KEY"], retries=0):
    return openai.OpenAI(base_url=os.environ["BASE_URL"], api_key=key, max_retries=retries, timeout=30)


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised where {kind.__name__} was expected")


def chat(model=MODEL, of=None, messages=MESSAGES, **rest):
    return (of or client()).chat.completions.create(model=model, messages=messages, **rest)


def text_of(stream):
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


def open_streams():
    with urllib.request.urlopen(os.environ["SCENARIO"] + "/open", timeout=10) as answer:
        return json.load(answer)["open"]


def models():
    ids = [model.id for model in client().models.list()]
    assert MODEL in ids and "acme/tools" in ids, ids
    model = client().models.retrieve(MODEL)
    assert (model.id, model.object) == (MODEL, "model"), model


def plain():
    answer = chat()
    assert answer.choices[0].message.content == "Hello from Berth", answer
    assert answer.choices[0].finish_reason == "stop", answer
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 3), answer


def streamed():
    chunks = list(chat(stream=True))
    assert text_of(chunks) == "Hello from Berth", chunks
    assert all(chunk.usage is None and chunk.choices for chunk in chunks), "usage that nobody asked for"
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == "Hello from Berth", chunks
    assert chunks[-1].usage.total_tokens == 8 and chunks[-1].choices == [], chunks[-1]


def tools():
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": city}}
    name, arguments, reasons = "", "", []
    for chunk in chat("acme/tools", tools=[tool], stream=True):
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Paris"}), (name, arguments)
    assert reasons[-1] == "tool_calls", reasons


def failures():
    for model in ("acme/broken", "acme/cut"):
        stream, seen = chat(model, stream=True), []
        error = raises(openai.APIError, lambda: [seen.append(chunk) for chunk in stream])
        assert text_of(seen) == "Hello from", (model, seen)
        assert error.message, model
    error = raises(openai.NotFoundError, lambda: chat("acme/nothing"))
    assert error.code == "model_not_found", error
    error = raises(openai.NotFoundError, lambda: client().models.retrieve("acme/nothing"))
    assert error.code == "model_not_found", error
    error = raises(openai.AuthenticationError, lambda: chat(of=client(key="brt_wrong")))
    assert error.code == "invalid_api_key", error
    error = raises(openai.BadRequestError, lambda: chat(messages=[]))
    assert error.type == "invalid_request_error", error


def retries():
    # The upstream refuses for as long as it says: who comes back sooner is refused again.
    messages = [{"role": "user", "content": "limited python_openai"}]
    assert raises(openai.RateLimitError, lambda: chat("acme/limited", messages=messages))
    answer = chat("acme/limited", of=client(retries=1), messages=messages)
    assert answer.choices[0].message.content == "Hello from Berth", answer


def cancelled():
    stream = chat("acme/endless", stream=True)
    assert next(iter(stream)).choices
    assert open_streams() == 1
    stream.close()
    deadline = time.monotonic() + 20
    while open_streams():
        assert time.monotonic() < deadline, "the upstream still writes"
        time.sleep(0.05)


def speech():
    request = {"model": "tts-1", "voice": "alloy", "input": "Hello from Berth", "response_format": "mp3"}
    with client().audio.speech.with_streaming_response.create(**request) as answer:
        sound = b"".join(answer.iter_bytes())
    assert sound[:3] == b"ID3" or (sound[0] == 0xFF and sound[1] & 0xE0 == 0xE0), sound[:16]
    assert len(sound) > 1000, len(sound)
    error = raises(openai.BadRequestError, lambda: client().audio.speech.create(**(request | {"voice": "nobody"})))
    assert error.type == "invalid_request_error", error


def embeddings():
    answer = client().embeddings.create(model="acme/embed", input="Hello")
    assert [round(number, 3) for number in answer.data[0].embedding] == [0.1, 0.2, 0.3], answer
    assert answer.usage.prompt_tokens == 1, answer


for check in (models, plain, streamed, tools, failures, retries, cancelled, speech, embeddings):
    print(check.__name__, flush=True)
    check()
