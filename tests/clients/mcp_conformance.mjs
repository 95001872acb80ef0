// The Model Context Protocol's own suite of conformance, and its inspector's command line, against a service.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createServer, request } from 'node:http';
import { promisify } from 'node:util';

const { API_KEY, BASELINE } = process.env;
const SERVICE = new URL(process.env.BASE_URL).origin;
const modules = `${process.cwd()}/node_modules/@modelcontextprotocol`;
const node = (...args) => promisify(execFile)(process.execPath, args, { maxBuffer: 1 << 26 });

// The suite has no way to send a key: this adds it.
async function withKey(run) {
  const target = new URL(SERVICE);
  const proxy = createServer((incoming, outgoing) => {
    const headers = { ...incoming.headers, authorization: `Bearer ${API_KEY}` };
    const { method, url } = incoming;
    const asked = request({ host: target.hostname, port: target.port, method, path: url, headers }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    });
    asked.on('error', () => outgoing.destroy());
    outgoing.on('close', () => asked.destroy());
    incoming.pipe(asked);
  });
  await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  try {
    await run(`http://localhost:${proxy.address().port}/mcp`);
  } finally {
    proxy.closeAllConnections();
    proxy.close();
  }
}

async function conforms(url) {
  const program = `${modules}/conformance/dist/index.js`;
  try {
    const { stdout } = await node(program, 'server', '--url', url, '--expected-failures', BASELINE);
    assert(stdout.includes('Baseline check passed'), stdout);
  } catch (error) {
    throw new Error(`${error.message}\n${error.stdout}\n${error.stderr}`);
  }
}

async function isInspected() {
  const program = `${modules}/inspector/clients/launcher/build/index.js`;
  const inspect = async (...args) => {
    const key = ['--header', `Authorization: Bearer ${API_KEY}`];
    const { stdout } = await node(program, '--cli', `${SERVICE}/mcp`, '--transport', 'http', ...key, ...args);
    return JSON.parse(stdout);
  };
  const { tools } = await inspect('--method', 'tools/list');
  assert(tools.some((tool) => tool.name === 'sandbox_fork'));
  const templates = await inspect('--method', 'resources/templates/list');
  assert(templates.resourceTemplates.length);
  const called = await inspect('--method', 'tools/call', '--tool-name', 'model_list');
  assert.equal(called.structuredContent.models.includes('acme/echo'), true, JSON.stringify(called));
}

await withKey(conforms);
await isInspected();
