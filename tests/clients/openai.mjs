// The official client for JavaScript against a gateway; the models are those of crates/cli/tests/clients/upstream.rs.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import OpenAI from "openai";

const { BASE_URL, API_KEY, MODEL, SCENARIO } = process.env;
const MESSAGES = [{ role: "user", content: "Say hello." }];

const client = (apiKey = API_KEY, maxRetries = 0) =>
  new OpenAI({ baseURL: BASE_URL, apiKey, maxRetries, timeout: 30_000 });

const chat = (body = {}, of = client()) =>
  of.chat.completions.create({ model: MODEL, messages: MESSAGES, ...body });

const textOf = (chunks) =>
  chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? "")).join("");

async function all(stream, seen = []) {
  for await (const chunk of stream) seen.push(chunk);
  return seen;
}

async function rejects(kind, promise) {
  const error = await promise.then(() => null, (error) => error);
  assert(error instanceof kind, `${kind.name} was expected: ${error}`);
  return error;
}

async function openStreams() {
  const answer = await fetch(`${SCENARIO}/open`);
  return (await answer.json()).open;
}

async function models() {
  const ids = (await all(await client().models.list())).map((model) => model.id);
  assert(ids.includes(MODEL) && ids.includes("acme/tools"), `${ids}`);
  const model = await client().models.retrieve(MODEL);
  assert.deepEqual([model.id, model.object], [MODEL, "model"]);
}

async function plain() {
  const answer = await chat();
  assert.equal(answer.choices[0].message.content, "Hello from Berth");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.deepEqual([answer.usage.prompt_tokens, answer.usage.completion_tokens], [5, 3]);
}

async function streamed() {
  let chunks = await all(await chat({ stream: true }));
  assert.equal(textOf(chunks), "Hello from Berth");
  assert(chunks.every((chunk) => !chunk.usage && chunk.choices.length), "usage that nobody asked for");
  chunks = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(textOf(chunks), "Hello from Berth");
  assert.equal(chunks.at(-1).usage.total_tokens, 8);
  assert.deepEqual(chunks.at(-1).choices, []);
}

async function tools() {
  const parameters = { type: "object", properties: { city: { type: "string" } } };
  const tool = { type: "function", function: { name: "get_weather", parameters } };
  const stream = client().chat.completions.stream({ model: "acme/tools", messages: MESSAGES, tools: [tool] });
  const answer = await stream.finalChatCompletion();
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
}

async function failures() {
  for (const model of ["acme/broken", "acme/cut"]) {
    const seen = [];
    const error = await rejects(OpenAI.APIError, all(await chat({ model, stream: true }), seen));
    assert.equal(textOf(seen), "Hello from", model);
    assert(error.message, model);
  }
  let error = await rejects(OpenAI.NotFoundError, chat({ model: "acme/nothing" }));
  assert.equal(error.code, "model_not_found");
  error = await rejects(OpenAI.NotFoundError, client().models.retrieve("acme/nothing"));
  assert.equal(error.code, "model_not_found");
  error = await rejects(OpenAI.AuthenticationError, chat({}, client("brt_wrong")));
  assert.equal(error.code, "invalid_api_key");
  error = await rejects(OpenAI.BadRequestError, chat({ messages: [] }));
  assert.equal(error.type, "invalid_request_error");
}

async function retries() {
  // The upstream refuses for as long as it says: who comes back sooner is refused again.
  const body = { model: "acme/limited", messages: [{ role: "user", content: "limited openai.mjs" }] };
  await rejects(OpenAI.RateLimitError, chat(body));
  const answer = await chat(body, client(API_KEY, 1));
  assert.equal(answer.choices[0].message.content, "Hello from Berth");
}

async function cancelled() {
  const stream = await chat({ model: "acme/endless", stream: true });
  const first = await stream[Symbol.asyncIterator]().next();
  assert(first.value.choices.length);
  assert.equal(await openStreams(), 1);
  stream.controller.abort();
  const deadline = performance.now() + 20_000;
  while (await openStreams()) {
    assert(performance.now() < deadline, "the upstream still writes");
    await sleep(50);
  }
}

async function speech() {
  const request = { model: "tts-1", voice: "alloy", input: "Hello from Berth", response_format: "mp3" };
  const answer = await client().audio.speech.create(request);
  const pieces = [];
  for await (const piece of answer.body) pieces.push(piece);
  const sound = Buffer.concat(pieces);
  const marked = sound.subarray(0, 3).toString("latin1") === "ID3";
  assert(marked || (sound[0] === 0xff && (sound[1] & 0xe0) === 0xe0), sound.subarray(0, 16).toString("hex"));
  assert(sound.length > 1000, `${sound.length}`);
}

async function embeddings() {
  const answer = await client().embeddings.create({ model: "acme/embed", input: "Hello" });
  const numbers = answer.data[0].embedding.map((number) => Number(number.toFixed(3)));
  assert.deepEqual(numbers, [0.1, 0.2, 0.3]);
}

for (const check of [models, plain, streamed, tools, failures, retries, cancelled, speech, embeddings]) {
  console.log(check.name);
  await check();
}
