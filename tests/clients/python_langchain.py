"""LangChain against a gateway; the models are those of crates/cli/tests/clients/upstream.rs."""

import itertools
import json
import os
import time
import urllib.request

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

MODEL = os.environ["MODEL"]
ACCESS = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"]}


def model(name=MODEL, **rest):
    return ChatOpenAI(**({"model": name, "max_retries": 0, "timeout": 30} | ACCESS | rest))


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised where {kind.__name__} was expected")


def open_streams():
    with urllib.request.urlopen(os.environ["SCENARIO"] + "/open", timeout=10) as answer:
        return json.load(answer)["open"]


def plain():
    answer = model().invoke("Say hello.")
    assert answer.content == "Hello from Berth", answer
    assert answer.usage_metadata["total_tokens"] == 8, answer


def streamed():
    chunks = list(model(stream_usage=False).stream("Say hello."))
    assert "".join(chunk.content for chunk in chunks) == "Hello from Berth", chunks
    whole = sum_of(model(stream_usage=True).stream("Say hello."))
    assert whole.content == "Hello from Berth", whole
    assert whole.usage_metadata["input_tokens"] == 5 and whole.usage_metadata["output_tokens"] == 3, whole


def sum_of(chunks):
    whole = None
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    return whole


def tools():
    def get_weather(city: str) -> str:
        """Tells the weather of a city."""
        return city

    whole = sum_of(model("acme/tools").bind_tools([get_weather]).stream("What is the weather in Paris?"))
    calls = [(call["name"], call["args"]) for call in whole.tool_calls]
    assert calls == [("get_weather", {"city": "Paris"})], whole


def failures():
    for name in ("acme/broken", "acme/cut"):
        seen = []
        raises(openai.APIError, lambda: [seen.append(chunk.content) for chunk in model(name).stream("Say hello.")])
        assert "".join(seen) == "Hello from", (name, seen)
    error = raises(openai.NotFoundError, lambda: model("acme/nothing").invoke("Say hello."))
    assert error.code == "model_not_found", error
    error = raises(openai.AuthenticationError, lambda: model(api_key="brt_wrong").invoke("Say hello."))
    assert error.code == "invalid_api_key", error


def retries():
    # The upstream refuses for as long as it says: who comes back sooner is refused again.
    answer = model("acme/limited", max_retries=1).invoke("limited python_langchain")
    assert answer.content == "Hello from Berth", answer


def cancelled():
    stream = model("acme/endless").stream("Say hello.")
    assert any(chunk.content for chunk in itertools.islice(stream, 3))
    assert open_streams() == 1
    stream.close()
    deadline = time.monotonic() + 20
    while open_streams():
        assert time.monotonic() < deadline, "the upstream still writes"
        time.sleep(0.05)


def embeddings():
    # Without the check it sends text: it would download a tokenizer of OpenAI's else.
    embed = OpenAIEmbeddings(model="acme/embed", check_embedding_ctx_length=False, **ACCESS)
    vector = embed.embed_query("Hello")
    assert [round(number, 3) for number in vector] == [0.1, 0.2, 0.3], vector


for check in (plain, streamed, tools, failures, retries, cancelled, embeddings):
    print(check.__name__, flush=True)
    check()
