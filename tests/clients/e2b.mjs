// E2B's SDK for JavaScript, unchanged, at Berth. Wants E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL, and the name of its package.
import assert from 'node:assert/strict'

const { Sandbox, CommandExitError, FilesystemEventType, TimeoutError } = await import(process.env.E2B_PACKAGE ?? 'e2b')

async function until(what, seconds = 20) {
  const end = Date.now() + seconds * 1000
  for (;;) {
    const found = await what()
    if (found) return found
    assert(Date.now() < end, `${what} did not come`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

async function control(box) {
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, { purpose: 'a test & more' })
  await box.setTimeout(900_000)
  assert((await box.getInfo()).endAt - info.endAt > 300_000)
  assert.equal(await box.isRunning(), true)
  const listed = await Sandbox.list({ query: { metadata: { purpose: 'a test & more' } } }).nextItems()
  assert.deepEqual(listed.map((one) => one.sandboxId), [box.sandboxId])
  const other = await Sandbox.connect(box.sandboxId)
  assert.equal((await other.commands.run('echo $GREETING')).stdout, 'hello\n')
}

async function commands(box) {
  const done = await box.commands.run('echo out; echo err >&2; pwd; whoami')
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['out\n/home/user\nuser\n', 'err\n', 0])
  await assert.rejects(box.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  assert.equal((await box.commands.run('id -u', { user: 'root' })).stdout, '0\n')
  const there = await box.commands.run('echo $A; pwd', { envs: { A: 'b c' }, cwd: '/tmp' })
  assert.equal(there.stdout, 'b c\n/tmp\n')
  await assert.rejects(box.commands.run('sleep 60', { timeoutMs: 2000 }), TimeoutError)
  const running = await box.commands.run('read line; echo got $line', { background: true, stdin: true })
  await box.commands.sendStdin(running.pid, 'a line\n')
  assert.equal((await running.wait()).stdout, 'got a line\n')
  const asleep = await box.commands.run('sleep 300', { background: true })
  assert((await box.commands.list()).some((one) => one.pid === asleep.pid))
  assert.equal(await box.commands.kill(asleep.pid), true)
  await until(async () => !(await box.commands.kill(asleep.pid)))
}

async function files(box) {
  const written = await box.files.write('notes/a.txt', 'first')
  assert.equal(written.path, '/home/user/notes/a.txt')
  assert.equal(await box.files.read('notes/a.txt'), 'first')
  const bytes = new Uint8Array([0, 255])
  await box.files.write('/tmp/b', bytes.buffer)
  assert.deepEqual(await box.files.read('/tmp/b', { format: 'bytes' }), bytes)
  await assert.rejects(box.files.read('nothing'))
  const both = await box.files.write([{ path: 'm/1', data: 'one' }, { path: 'm/2', data: 'two' }])
  assert.deepEqual(both.map((one) => one.path), ['/home/user/m/1', '/home/user/m/2'])
  assert.deepEqual((await box.files.list('m')).map((one) => one.name).sort(), ['1', '2'])
  assert.equal(await box.files.makeDir('x/y'), true)
  assert.equal(await box.files.makeDir('x/y'), false)
  assert.equal((await box.files.rename('notes/a.txt', 'x/moved')).path, '/home/user/x/moved')
  assert.equal(await box.files.exists('x/moved'), true)
  await box.files.remove('x')
  assert.equal(await box.files.exists('x'), false)
  assert.equal((await box.files.getInfo('m/1')).size, 3)
}

async function signed(box) {
  await box.files.write('signed', 'by address')
  const address = await box.downloadUrl('signed', { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(address)).text(), 'by address')
  const form = new FormData()
  form.append('file', new Blob(['sent']), 'f')
  assert((await fetch(await box.uploadUrl('sent'), { method: 'POST', body: form })).ok)
  assert.equal(await box.files.read('sent'), 'sent')
}

async function watched(box) {
  const seen = []
  const watch = await box.files.watchDir('/home/user', (event) => seen.push(event), { timeoutMs: 0 })
  await box.files.write('seen', 'x')
  await until(() => seen.some((one) => one.name === 'seen' && one.type === FilesystemEventType.CREATE))
  await watch.stop()
}

async function terminal(box) {
  let said = ''
  const pty = await box.pty.create({ cols: 80, rows: 24, onData: (data) => (said += new TextDecoder().decode(data)) })
  await box.pty.resize(pty.pid, { cols: 100, rows: 30 })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; echo sum=$((40 + 2)); exit 4\n'))
  await assert.rejects(pty.wait(), (error) => error.exitCode === 4)
  assert(said.includes('30 100') && said.includes('sum=42'), said)
}

async function lives(box) {
  await box.files.write('kept', '1')
  assert.notEqual(await Sandbox.pause(box.sandboxId), false)
  assert.equal(await box.isRunning(), false)
  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 900_000 })
  assert.equal(await again.files.read('kept'), '1')
  const point = await box.createSnapshot()
  await box.files.write('kept', '2')
  const old = await Sandbox.create(point.snapshotId)
  assert.equal(await old.files.read('kept'), '1')
  assert.equal(await old.kill(), true)
  assert.equal(await Sandbox.deleteSnapshot(point.snapshotId), true)
}

async function ends(box) {
  const waiting = box.commands.run('sleep 300', { timeoutMs: 0 }).then(() => null, (error) => error)
  await until(async () => (await box.commands.list()).some((one) => one.args.join(' ').includes('sleep 300')))
  assert.equal(await box.kill(), true)
  assert.equal(await box.kill(), false)
  assert((await waiting) instanceof Error)
  await assert.rejects(box.commands.run('true'))
}

const box = await Sandbox.create({ timeoutMs: 300_000, metadata: { purpose: 'a test & more' }, envs: { GREETING: 'hello' } })
try {
  for (const part of [control, commands, files, signed, watched, terminal, lives, ends]) {
    await part(box)
    console.log(part.name, 'ok')
  }
} finally {
  await box.kill()
}
