// Clients of npm against a running server: node smoke.mjs URL KEY. Fails on the first thing that is wrong.
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText, tool, jsonSchema } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createAnthropic } from "@ai-sdk/anthropic";

const [url, key] = process.argv.slice(2);
const messages = [{ role: "user", content: "Tell me a short story about a fox." }];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;

async function openai() {
  const how = { model, messages, temperature: 0, max_tokens: 16 };
  const whole = await client.chat.completions.create(how);
  const read = (m) => (m.reasoning_content ?? "") + (m.content ?? "");
  let text = "";
  for await (const c of await client.chat.completions.create({ ...how, stream: true })) text += read(c.choices[0].delta);
  assert.equal(text, read(whole.choices[0].message));
  const stream = client.responses.stream({ model, input: "Hello", max_output_tokens: 8 });
  assert.ok(["completed", "incomplete"].includes((await stream.finalResponse()).status));
}

async function anthropic() {
  const a = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
  const m = await a.messages.stream({ model, messages, max_tokens: 8 }).finalMessage();
  assert.ok(m.stop_reason);
}

const tools = {
  weather: tool({
    description: "The weather of a place",
    inputSchema: jsonSchema({ type: "object", properties: { place: { type: "string" } }, required: ["place"] }),
  }),
};

async function ai(provider) {
  const how = { model: provider(model), messages, temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
  const whole = await generateText(how);
  const streamed = streamText({ ...how, onError: ({ error }) => { throw error; } });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, whole.text);
  const withTools = streamText({ ...how, tools, onError: ({ error }) => { throw error; } });
  await withTools.consumeStream();
  assert.ok(await withTools.finishReason);
}

await openai();
console.log("openai (npm): passed");
await anthropic();
console.log("@anthropic-ai/sdk (npm): passed");
await ai(createOpenAICompatible({ name: "firth", baseURL: `${url}/v1`, apiKey: key }));
console.log("ai with @ai-sdk/openai-compatible: passed");
await ai(createAnthropic({ baseURL: `${url}/v1`, apiKey: key }));
console.log("ai with @ai-sdk/anthropic: passed");
