// E2B's code interpreter SDK for JavaScript, unchanged, at Berth. Wants E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL.
import assert from 'node:assert/strict'
import { Sandbox, TimeoutError } from '@e2b/code-interpreter'

async function results(box) {
  assert.equal((await box.runCode('1 + 1')).text, '2')
  const came = []
  const said = await box.runCode('print("ü" * 100_000); import sys; print("err", file=sys.stderr); [1, 2]', {
    onStdout: (message) => came.push(message.line),
  })
  assert.equal(came.join(''), `${'ü'.repeat(100_000)}\n`)
  assert.deepEqual(said.logs.stderr, ['err\n'])
  assert.deepEqual(said.results[0].json, [1, 2])
  const { error } = await box.runCode('1 / 0')
  assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero'])
  const given = await box.runCode('import os; os.environ["OF_BOX"] + os.environ["OF_RUN"]', { envs: { OF_RUN: 'r' } })
  assert.equal(given.text, 'br')
}

async function contexts(box) {
  const context = await box.createCodeContext({ cwd: '/tmp', language: 'js' })
  assert.equal((await box.runCode('const a = 3; process.cwd()', { context })).text, '/tmp')
  assert.equal((await box.runCode('a', { context })).text, '3')
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('typeof a', { context })).text, 'undefined')
  await box.removeCodeContext(context)
  assert(!(await box.listCodeContexts()).some((one) => one.id === context.id))
}

async function charts(box) {
  const shown = await box.runCode('import matplotlib.pyplot as plt\nplt.bar(["a"], [2]); plt.show()')
  assert.equal(Buffer.from(shown.results[0].png, 'base64').subarray(1, 4).toString(), 'PNG')
  assert.deepEqual([shown.results[0].chart.type, shown.results[0].chart.elements[0].label], ['bar', 'a'])
  const table = await box.runCode('import pandas as pd\npd.DataFrame({"a": [1.5, None]})')
  assert.deepEqual(table.results[0].data, { a: [1.5, null] })
}

async function interrupts(box) {
  await box.runCode('kept = 7')
  await assert.rejects(box.runCode('import time; time.sleep(300)', { timeoutMs: 2000 }), TimeoutError)
  assert.equal((await box.runCode('kept')).text, '7')
}

const box = await Sandbox.create({ timeoutMs: 600_000, envs: { OF_BOX: 'b' } })
try {
  for (const part of [results, contexts, charts, interrupts]) await part(box)
} finally {
  await box.kill()
}
