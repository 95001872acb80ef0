// The AI SDK against a gateway; the models are those of crates/cli/tests/clients/upstream.rs.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embed, generateText, jsonSchema, streamText, tool } from "ai";

const { BASE_URL, API_KEY, MODEL, SCENARIO } = process.env;
const prompt = "Say hello.";

const provider = (apiKey = API_KEY) =>
  createOpenAICompatible({ name: "berth", baseURL: BASE_URL, apiKey, includeUsage: true });

// What a stream came to: its text and the errors it told.
async function seen(options) {
  const result = { text: "", errors: [], calls: [] };
  const stream = streamText({ maxRetries: 0, prompt, onError: () => {}, ...options });
  for await (const part of stream.fullStream) {
    if (part.type === "text-delta") result.text += part.text;
    if (part.type === "error") result.errors.push(part.error);
    if (part.type === "tool-call") result.calls.push([part.toolName, part.input]);
    if (part.type === "finish") Object.assign(result, { reason: part.finishReason, usage: part.totalUsage });
  }
  return result;
}

async function rejects(promise) {
  const error = await promise.then(() => null, (error) => error);
  assert(APICallError.isInstance(error), `a refusal was expected: ${error}`);
  return error;
}

async function openStreams() {
  const answer = await fetch(`${SCENARIO}/open`);
  return (await answer.json()).open;
}

async function plain() {
  const answer = await generateText({ model: provider()(MODEL), prompt, maxRetries: 0 });
  assert.equal(answer.text, "Hello from Berth");
  assert.equal(answer.finishReason, "stop");
  assert.deepEqual([answer.usage.inputTokens, answer.usage.outputTokens], [5, 3]);
}

async function streamed() {
  const { text, errors, reason, usage } = await seen({ model: provider()(MODEL) });
  assert.deepEqual([text, errors, reason], ["Hello from Berth", [], "stop"]);
  assert.deepEqual([usage.inputTokens, usage.outputTokens], [5, 3]);
}

async function tools() {
  const inputSchema = jsonSchema({ type: "object", properties: { city: { type: "string" } } });
  const get_weather = tool({ description: "Tells the weather of a city.", inputSchema });
  const { calls, reason } = await seen({ model: provider()("acme/tools"), tools: { get_weather } });
  assert.deepEqual(calls, [["get_weather", { city: "Paris" }]]);
  assert.equal(reason, "tool-calls");
}

async function failures() {
  for (const model of ["acme/broken", "acme/cut"]) {
    const { text, errors } = await seen({ model: provider()(model) });
    assert.equal(text, "Hello from", model);
    assert.equal(errors.length, 1, model);
  }
  const ask = (model) => rejects(generateText({ model, prompt, maxRetries: 0 }));
  let error = await ask(provider()("acme/nothing"));
  assert.deepEqual([error.statusCode, JSON.parse(error.responseBody).error.code], [404, "model_not_found"]);
  error = await ask(provider("brt_wrong")(MODEL));
  assert.deepEqual([error.statusCode, JSON.parse(error.responseBody).error.code], [401, "invalid_api_key"]);
}

async function retries() {
  // The upstream refuses for as long as it says: who comes back sooner is refused again.
  const model = provider()("acme/limited");
  const answer = await generateText({ model, prompt: "limited ai_sdk.mjs", maxRetries: 1 });
  assert.equal(answer.text, "Hello from Berth");
}

async function cancelled() {
  const leave = new AbortController();
  const stream = streamText({ model: provider()("acme/endless"), prompt, maxRetries: 0, abortSignal: leave.signal });
  for await (const part of stream.fullStream) {
    if (part.type !== "text-delta") continue;
    assert.equal(await openStreams(), 1);
    leave.abort();
    break;
  }
  const deadline = performance.now() + 20_000;
  while (await openStreams()) {
    assert(performance.now() < deadline, "the upstream still writes");
    await sleep(50);
  }
}

async function embeddings() {
  const { embedding } = await embed({ model: provider().embeddingModel("acme/embed"), value: "Hello" });
  assert.deepEqual(embedding.map((number) => Number(number.toFixed(3))), [0.1, 0.2, 0.3]);
}

for (const check of [plain, streamed, tools, failures, retries, cancelled, embeddings]) {
  console.log(check.name);
  await check();
}
