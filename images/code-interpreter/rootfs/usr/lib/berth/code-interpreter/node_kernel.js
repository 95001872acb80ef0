// Runs JavaScript for the server: one process for each context.
//
// Its arguments are two descriptors: requests come by the first, a line of JSON each; events go to the second, as the
// server's client gets them, and `end` is the last of an execution. What a cell prints goes to standard output and error.
//
// A cell is the body of an async function, so that it may await. What it declares at its top becomes a property of the
// global object: the next cells have it, and may declare it again.
'use strict'

const { createRequire } = require('module')
const { pathToFileURL } = require('url')
const { Socket } = require('net')
const acorn = require('acorn')
const fs = require('fs')
const util = require('util')
const vm = require('vm')

const [REQUESTS, EVENTS] = process.argv.slice(2).map(Number)
// A longer event is not sent, in bytes.
const LONGEST = 32 << 20
// As in python_kernel.py: a kernel is to go before the server where there is too little memory.
const FIRST_TO_GO = 100

const user = createRequire(process.cwd() + '/')
let count = 0
let interrupt = null

function send(event) {
  let line = Buffer.from(JSON.stringify(event))
  if (line.length > LONGEST) {
    const text = `(left out: ${line.length} bytes, of at most ${LONGEST})`
    line = Buffer.from(JSON.stringify({ type: 'result', is_main_result: event.is_main_result, text }))
  }
  write(line)
}

function write(line) {
  let rest = Buffer.concat([Buffer.from(line), Buffer.from('\n')])
  while (rest.length) rest = rest.subarray(fs.writeSync(EVENTS, rest))
}

// The names that a pattern binds: `{a, b: [c], ...d}`.
function namesOf(pattern) {
  switch (pattern.type) {
    case 'Identifier': return [pattern.name]
    case 'ObjectPattern': return pattern.properties.flatMap((each) => namesOf(each.value ?? each.argument))
    case 'ArrayPattern': return pattern.elements.flatMap((each) => (each ? namesOf(each) : []))
    case 'AssignmentPattern': return namesOf(pattern.left)
    case 'RestElement': return namesOf(pattern.argument)
    default: return []
  }
}

// What a cell becomes: the names that it declares, and the source of a function that runs it and returns the value of its
// last expression. `lines` and `columns` say where the cell begins in it: functions stand first.
function rewrite(code) {
  const options = { ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowImportExportEverywhere: true }
  const { body } = acorn.parse(code, { ...options, allowHashBang: true })
  const text = (node) => code.slice(node.start, node.end)
  const names = []
  let functions = ''
  const parts = body.map((node, at) => {
    switch (node.type) {
      case 'VariableDeclaration':
        names.push(...node.declarations.flatMap((each) => namesOf(each.id)))
        return declaration(node, text)
      case 'FunctionDeclaration':
        names.push(node.id.name)
        functions += `${node.id.name} = ${text(node)};`
        return '\n'.repeat(text(node).split('\n').length - 1)
      case 'ClassDeclaration':
        names.push(node.id.name)
        return `${node.id.name} = ${text(node)};`
      case 'ImportDeclaration':
        names.push(...node.specifiers.map((each) => each.local.name))
        return importing(node)
      case 'ExpressionStatement':
        return at === body.length - 1 ? `return (${text(node.expression)}\n);` : text(node)
      default:
        return text(node)
    }
  })
  const between = body.map((node, at) => code.slice(at ? body[at - 1].end : 0, node.start))
  const source = parts.map((part, at) => between[at] + part).join('')
  const begin = `(async () => {${functions}`
  const [lines, columns] = [begin.split('\n').length - 1, begin.length - begin.lastIndexOf('\n') - 1]
  return { names, source: `${begin}${source}\n})()`, lines, columns }
}

// A declaration as assignments: `const a = 1, {b} = c` as `void ((a = 1), ({b} = c));`.
function declaration(node, text) {
  const assigned = node.declarations.filter((each) => each.init || node.kind !== 'var')
  const parts = assigned.map((each) => `(${text(each.id)} = ${each.init ? text(each.init) : 'undefined'})`)
  return `void (${parts.join(', ') || 0});`
}

function importing(node) {
  const loaded = `(await import(${node.source.raw}))`
  const parts = node.specifiers.map(({ type, local, imported }) => {
    if (type === 'ImportNamespaceSpecifier') return `${local.name} = ${loaded}`
    const name = type === 'ImportDefaultSpecifier' ? 'default' : imported.name ?? imported.value
    return `${local.name} = ${loaded}[${JSON.stringify(name)}]`
  })
  return `${parts.join('; ') || loaded};`
}

// Names are there, and may be assigned to, before the cell runs: some of Node's own are only read.
function declare(names) {
  for (const name of names) {
    const known = Object.getOwnPropertyDescriptor(globalThis, name)
    if (known && 'value' in known) continue
    const value = undefined
    Object.defineProperty(globalThis, name, { value, writable: true, enumerable: true, configurable: true })
  }
}

// Packages are the user's, who has them below the context's folder.
function load(specifier) {
  let found = specifier
  try {
    const resolved = user.resolve(specifier)
    found = resolved.startsWith('/') ? pathToFileURL(resolved).href : resolved
  } catch {
    // Node says itself what it does not find.
  }
  return import(found)
}

let typescript = null
// Loading it takes a second, and much of a small machine's memory: only who asks for it has it.
function withoutTypes(code) {
  typescript ??= require('typescript')
  const { ESNext } = typescript.ScriptTarget
  const compilerOptions = { target: ESNext, module: typescript.ModuleKind.ESNext, preserveValueImports: true }
  const { outputText } = typescript.transpileModule(code, { compilerOptions })
  return outputText.replace(/export \{\};\s*$/, '')
}

function evaluate(code, types) {
  const { names, source, lines, columns } = rewrite(types ? withoutTypes(code) : code)
  declare(names)
  const place = { filename: `cell-${count}`, lineOffset: -lines, columnOffset: lines ? 0 : -columns }
  const options = { ...place, importModuleDynamically: load }
  return new vm.Script(source, options).runInThisContext({ breakOnSigint: true })
}

function shown(value) {
  const event = { type: 'result', is_main_result: true }
  event.text = typeof value === 'string' ? value : util.inspect(value, { depth: 4 })
  const prototype = value && typeof value === 'object' ? Object.getPrototypeOf(value) : undefined
  if (Array.isArray(value) || prototype === Object.prototype || prototype === null) {
    try {
      event.json = JSON.parse(JSON.stringify(value))
    } catch {
      // The text shows what JSON cannot say.
    }
  }
  return event
}

function failure(error) {
  if (!util.types.isNativeError(error)) {
    return { type: 'error', name: typeof error, value: util.inspect(error), traceback: util.inspect(error) }
  }
  const stack = String(error.stack).split('\n')
  const own = stack.findIndex((line) => [__filename, 'node:vm', '/acorn/'].some((part) => line.includes(part)))
  const traceback = stack.slice(0, own < 0 ? undefined : own).join('\n')
  return { type: 'error', name: String(error.name), value: String(error.message), traceback }
}

// Sets variables, removes those without a value, and returns what they were.
function setVariables(variables) {
  const before = {}
  for (const [name, value] of Object.entries(variables ?? {})) {
    before[name] = process.env[name]
    if (value === undefined || value === null) delete process.env[name]
    else process.env[name] = value
  }
  return before
}

async function execute(request) {
  count += 1
  send({ type: 'number_of_executions', execution_count: count })
  if (request.become) setVariables(request.become)
  const before = setVariables(request.env_vars)
  const interrupted = new Promise((_, reject) => {
    interrupt = () => reject(new Error('The execution was interrupted.'))
  })
  try {
    const value = await Promise.race([evaluate(request.code, request.typescript), interrupted])
    if (value !== undefined) send(shown(value))
  } catch (error) {
    send(failure(error))
  }
  interrupt = null
  setVariables(before)
  write('end')
}

function main() {
  fs.writeFileSync('/proc/self/oom_score_adj', `${FIRST_TO_GO}`)
  for (const [name, value] of Object.entries({ require: user, module: { exports: {} } })) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true })
  }
  process.on('SIGINT', () => interrupt?.())
  // What fails when nobody waits for it is told, and ends nothing.
  process.on('uncaughtException', (error) => console.error('Uncaught', error))
  process.on('unhandledRejection', (error) => console.error('Uncaught (in promise)', error))
  let text = ''
  let last = Promise.resolve()
  const requests = new Socket({ fd: REQUESTS, readable: true, writable: false })
  requests.setEncoding('utf8')
  requests.on('data', (data) => {
    const lines = (text + data).split('\n')
    text = lines.pop()
    for (const line of lines) last = last.then(() => execute(JSON.parse(line)))
  })
  requests.on('end', () => process.exit())
}

if (require.main === module) main()
else module.exports = { rewrite }
