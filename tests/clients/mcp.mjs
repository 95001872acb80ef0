// The Model Context Protocol's SDK for TypeScript, against a service with sandboxes.
import assert from 'node:assert/strict';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const { BERTH_URL, BERTH_API_KEY } = process.env;

const texts = (result) => {
  assert(!result.isError, JSON.stringify(result));
  return result.content.filter((block) => block.type === 'text').map((block) => block.text);
};

async function connected(key = BERTH_API_KEY) {
  const client = new Client({ name: 'suite', version: '1' });
  const requestInit = { headers: { Authorization: `Bearer ${key}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(`${BERTH_URL}/mcp`), { requestInit }));
  return client;
}

async function describesItsTools(client) {
  const { tools } = await client.listTools();
  for (const tool of tools) {
    assert(tool.description && tool.annotations.title, tool.name);
    assert.equal(typeof tool.annotations.readOnlyHint, 'boolean', tool.name);
    assert.equal(tool.inputSchema.additionalProperties, false, tool.name);
  }
  const create = tools.find((tool) => tool.name === 'sandbox_create');
  assert(create.inputSchema.properties.name.examples.length);
  const { resourceTemplates } = await client.listResourceTemplates();
  assert(resourceTemplates.some((template) => template.uriTemplate.startsWith('berth://sandboxes/')));
}

async function worksIn(client, id) {
  const run = (command, options) =>
    client.callTool({ name: 'sandbox_run_command', arguments: { sandbox_id: id, command } }, options);
  const heard = [];
  const onprogress = ({ progress, message }) => heard.push([progress, message]);
  const [output] = texts(await run('for i in 1 2 3; do echo step $i; sleep 0.4; done', { onprogress }));
  assert.equal(output, 'step 1\nstep 2\nstep 3\n');
  assert(heard.some(([, message]) => message.includes('step')), JSON.stringify(heard));
  // Those of one client go on beside each other.
  const both = await Promise.all(['a', 'b'].map((word) => run(`sleep 0.3; echo ${word}`)));
  assert.deepEqual(both.map((result) => texts(result)[0]), ['a\n', 'b\n']);
  const file = { sandbox_id: id, path: 'from/typescript.txt', content: 'written\n' };
  texts(await client.callTool({ name: 'sandbox_write_file', arguments: file }));
  const uri = `berth://sandboxes/${id}/files/home/user/from/typescript.txt`;
  const { contents } = await client.readResource({ uri });
  assert.equal(contents[0].text, 'written\n');
}

// A call that is given up ends its command.
async function givesUp(client, id) {
  const call = { name: 'sandbox_run_command', arguments: { sandbox_id: id, command: 'sleep 4711' } };
  const cancel = new AbortController();
  const given = assert.rejects(client.callTool(call, { signal: cancel.signal }));
  const found = async () => {
    const list = await client.callTool({ name: 'sandbox_processes', arguments: { sandbox_id: id } });
    return list.structuredContent.data.find((process) => process.command.includes('4711'));
  };
  const until = async (is) => {
    for (let tries = 0; !is(await found()); tries += 1) {
      assert(tries < 100, 'it does not come to that');
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  };
  await until((process) => process);
  cancel.abort();
  await given;
  await until((process) => process.exit);
  assert.equal((await found()).exit.signal, 'SIGKILL');
}

const client = await connected();
await describesItsTools(client);
const created = await client.callTool({ name: 'sandbox_create', arguments: { name: 'typescript' } });
const { id } = created.structuredContent;
await worksIn(client, id);
await givesUp(client, id);
const missing = await client.callTool({ name: 'sandbox_show', arguments: { sandbox_id: 'nothing' } });
assert(missing.isError, JSON.stringify(missing));
texts(await client.callTool({ name: 'sandbox_delete', arguments: { sandbox_id: id } }));
await assert.rejects(connected('brt_nothing'));
await client.close();
