"""Runs code for E2B's code interpreter SDKs, at port 49999 of a sandbox's loopback: the service and the sandbox's own
programs reach it, its neighbours do not.

POST /execute {code, language or context_id, env_vars} answers with a line of JSON for each thing that comes of it, as it
comes. A context is what its cells left: GET and POST /contexts, DELETE /contexts/ID, POST /contexts/ID/restart. GET
/health says whether the first one is there, GET /rehearsal runs a cell in it that leaves nothing.

The server and a kernel for Python run before a sandbox is anybody's. Whose it became shows in the machine's boot id, and in
the variables that the agent leaves beside it.
"""

import asyncio
import gc
import json
import os
import sys
import uuid

from kernels import Died, JavaScript, Python, line

PORT = 49999
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# What programs of this sandbox are to find in their environment, as JSON.
VARIABLES = "/run/berth/environment"
LANGUAGES = {
    "python": "python", "python3": "python", "py": "python", "javascript": "javascript", "js": "javascript",
    "node": "javascript", "typescript": "typescript", "ts": "typescript",
}
# Those that have a context from the beginning.
AT_ONCE = ("python", "javascript")
# Most of contexts: each is a process.
MOST = 100
# Bytes of a request's head and of its body.
LONGEST_HEAD, LONGEST_BODY = 64 << 10, 64 << 20
# Seconds between words to a client that waits: it may have left without one.
ALIVE = 5
# What is run once before the first sandbox: what that loads and compiles is in the memory that all begin with.
REHEARSAL = ("print('a'); 1 + 1", "import sys; print('a', file=sys.stderr)", "1 / 0")


class Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status, self.text = status, text


def read(path):
    """A file's text; nothing where there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


async def to_the_end(work):
    """Does what is not to be left half done; who is cancelled meanwhile is so afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def must_be_enterable(folder):
    """Refuses a folder that no kernel can work in."""
    try:
        os.stat(os.path.join(folder, "."))
        if not os.access(folder, os.X_OK):
            raise PermissionError(13, "Permission denied")
    except (OSError, ValueError) as error:
        raise Refused(400, f"The folder {folder!r} cannot be entered: {getattr(error, 'strerror', error)}.") from error


def must_be_encodable(code, variables):
    """Refuses what is no text, and what no environment holds."""
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise Refused(422, f"env_vars has {name!r}, which cannot be a variable: its name or value is not allowed.")
    try:
        "".join([code, *variables, *variables.values()]).encode()
    except UnicodeEncodeError as error:
        raise Refused(422, f"code and env_vars must be UTF-8: {error}.") from error


class Context:
    """What cells left, in a kernel that is started when it is wanted. One cell runs at a time; others queue."""

    def __init__(self, maker, language, folder):
        self.id, self.maker, self.language, self.folder = str(uuid.uuid4()), maker, language, folder
        self.kernel, self.lock, self.restarting, self.removed = None, asyncio.Lock(), False, False

    def view(self):
        return {"id": self.id, "language": self.language, "cwd": self.folder}

    async def begin(self):
        """Starts its kernel, where none runs."""
        async with self.lock:
            await self._begin()

    async def _begin(self):
        self._must_be_there()
        if self.kernel is None or self.kernel.dead:
            await to_the_end(self._start())

    async def _start(self):
        must_be_enterable(self.folder)
        self.kernel = await self.maker.start(self.folder)
        # Who removed or restarted it meanwhile found no kernel to end.
        if self.removed or self.restarting:
            self.end()
        self._must_be_there()

    def _must_be_there(self):
        if self.removed:
            raise Refused(404, f"Context {self.id} not found")

    async def execute(self, code, variables, send, quiet=False):
        """Runs a cell when its turn comes. Who cancels this interrupts it. A quiet one leaves nothing."""
        async with self.lock:
            await self._begin()
            request = {"code": code, "env_vars": variables, "typescript": self.language == "typescript", "quiet": quiet}
            if self.kernel.boot != (boot := read(BOOT_ID)):
                told = json.loads(read(VARIABLES) or "{}")
                request["become"] = self.kernel.changed(told)
                self.kernel.boot, self.kernel.variables = boot, told
            try:
                await self.kernel.run(request, send)
            except Died:
                await send(self._died(), True)
            except (ConnectionError, asyncio.CancelledError):
                await to_the_end(self.kernel.interrupt())
                raise

    def _died(self):
        name, value = "UnexpectedEndOfExecution", "The kernel died before the execution was finished; it lost what it held."
        if self.restarting:
            name, value = "ContextRestarting", "The context was restarted."
        return line(type="error", name=name, value=value, traceback="") + line(type="unexpected_end_of_execution")

    async def restart(self):
        """Begins anew, whatever runs."""
        self.restarting = True
        self.end()
        async with self.lock:
            self.restarting = False
            # A cell that waited may have begun another one.
            self.end()
            self.kernel = None
            await self._begin()

    def remove(self):
        """Ends it for good: who waits for it is refused."""
        self.removed = True
        self.end()

    def end(self):
        if self.kernel:
            self.kernel.kill()


class Contexts:
    """All contexts, and which is a language's own."""

    def __init__(self):
        python, node = Python(), JavaScript()
        self.makers = {"python": python, "javascript": node, "typescript": node}
        self.home = os.path.expanduser("~")
        self.all, self.own = {}, {}

    def add(self, name, folder):
        """A new one."""
        language = self._language(name)
        if len(self.all) >= MOST:
            raise Refused(409, f"There are {MOST} contexts, which is the most. Remove one.")
        must_be_enterable(folder)
        context = Context(self.makers[language], language, folder)
        self.all[context.id] = context
        return context

    def own_of(self, name):
        """A language's own context."""
        language = self._language(name)
        if self.own.get(language) not in self.all:
            self.own[language] = self.add(language, self.home).id
        return self.all[self.own[language]]

    def find(self, context_id):
        if context := self.all.get(context_id):
            return context
        raise Refused(404, f"Context {context_id} not found")

    def remove(self, context_id):
        self.find(context_id).remove()
        del self.all[context_id]

    def _language(self, name):
        if language := LANGUAGES.get((name or "python").strip().lower()):
            return language
        raise Refused(400, f"There is no kernel for {name!r}. There are: {', '.join(self.makers)}.")


class Request:
    """What a client wants."""

    def __init__(self, method, path, body):
        self.method, self.path, self.body = method, path, body

    def fields(self):
        """The body, a JSON object."""
        try:
            fields = json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refused(400, f"The body is no JSON: {error}.") from error
        if not isinstance(fields, dict):
            raise Refused(400, "The body must be a JSON object.")
        return fields

    def text(self, name):
        """A field that is a text, or nothing."""
        value = self.fields().get(name)
        if value is None or isinstance(value, str):
            return value
        raise Refused(422, f"{name} must be a text.")


async def receive(reader):
    """Reads a request; its path has no query."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.LimitOverrunError, ValueError) as error:
        raise Refused(431, "The request's head is too long.") from error
    first, *rest = head.split("\r\n")
    method, target, _ = (first.split(" ") + ["", ""])[:3]
    headers = {name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
    body = await body_of(reader, headers)
    return Request(method, target.partition("?")[0], body)


async def body_of(reader, headers):
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return await reader.readexactly(bounded(headers.get("content-length") or "0", 10))
    body = b""
    while size := bounded((await reader.readline()).split(b";")[0].decode("latin-1"), 16):
        body += await reader.readexactly(bounded(f"{len(body) + size}", 10) - len(body))
        await reader.readline()
    while (await reader.readline()).strip():
        # Fields behind the body.
        continue
    return body


def bounded(text, base):
    """A length that may be read."""
    try:
        length = int(text.strip(), base)
    except ValueError as error:
        raise Refused(400, "The length of the body is no number.") from error
    if 0 <= length <= LONGEST_BODY:
        return length
    raise Refused(413, f"The body is longer than {LONGEST_BODY} bytes.")


def answer(writer, status, text, kind="text/plain"):
    body = text.encode("utf-8", "replace")
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'Refused')}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)


REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict",
    413: "Content Too Large", 422: "Unprocessable Content", 500: "Internal Server Error", 503: "Service Unavailable",
}


class Stream:
    """An answer that comes in lines."""

    def __init__(self, writer):
        self.writer, self.sent, self.kept = writer, False, b""
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nConnection: close"
        writer.write(f"{head}\r\n\r\n".encode())

    async def send(self, data, last=False):
        """Sends whole lines; waits while the client reads more slowly than they come. The last go with the end."""
        self.sent = True
        if last:
            self.kept = data
            return
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def keep_alive(self):
        while True:
            await asyncio.sleep(ALIVE)
            if not self.sent:
                await self.send(line(type="keepalive"))
            self.sent = False

    async def end(self):
        await self.send(self.kept + line(type="end_of_execution"))
        self.writer.write(b"0\r\n\r\n")


class Server:
    """What answers requests."""

    def __init__(self):
        self.contexts, self.ready = Contexts(), False

    async def serve(self, reader, writer):
        """One request of one connection."""
        try:
            await self._serve(reader, writer)
            await writer.drain()
        except Refused as refused:
            answer(writer, refused.status, refused.text)
        except (ConnectionError, asyncio.IncompleteReadError):
            # It left.
            pass
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            answer(writer, 500, f"{type(error).__name__}: {error}")
        finally:
            writer.close()

    async def _serve(self, reader, writer):
        request = await receive(reader)
        match [request.method, *request.path.strip("/").split("/")]:
            case ["GET", "health"]:
                answer(writer, *((200, "OK") if self.ready else (503, "starting")))
            case ["POST", "execute"]:
                await self.execute(request, reader, writer)
            case ["GET", "rehearsal"]:
                await self.rehearse()
                answer(writer, 200, "OK")
            case ["GET", "contexts"]:
                listed = [context.view() for context in self.contexts.all.values()]
                answer(writer, 200, json.dumps(listed), "application/json")
            case ["POST", "contexts"]:
                folder = request.text("cwd") or self.contexts.home
                context = self.contexts.add(request.text("language"), folder)
                await context.begin()
                answer(writer, 200, json.dumps(context.view()), "application/json")
            case ["DELETE", "contexts", context_id]:
                self.contexts.remove(context_id)
                answer(writer, 200, "null", "application/json")
            case ["POST", "contexts", context_id, "restart"]:
                await self.contexts.find(context_id).restart()
                answer(writer, 200, "null", "application/json")
            case _:
                raise Refused(404, f"There is no {request.method} {request.path}.")

    async def execute(self, request, reader, writer):
        """Runs a cell for as long as its client listens."""
        code, context_id, language = (request.text(name) for name in ("code", "context_id", "language"))
        variables = request.fields().get("env_vars") or {}
        if code is None or not isinstance(variables, dict):
            raise Refused(422, "code must be a text, and env_vars an object.")
        if context_id and language:
            raise Refused(400, "Only one of context_id or language can be provided")
        texts = {name: str(value) for name, value in variables.items()}
        must_be_encodable(code, texts)
        context = self.contexts.find(context_id) if context_id else self.contexts.own_of(language)
        stream = Stream(writer)
        running = asyncio.create_task(context.execute(code, texts, stream.send))
        others = [asyncio.create_task(stream.keep_alive()), asyncio.create_task(left(reader))]
        await asyncio.wait([running, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in (*others, running):
            task.cancel()
        await asyncio.wait([running, *others])
        if running.cancelled():
            return
        if error := running.exception():
            # The answer has begun: this is a part of it.
            await stream.send(line(type="error", name=type(error).__name__, value=str(error), traceback=""), True)
        await stream.end()

    async def rehearse(self):
        """Does what the first cell of a sandbox does, in a machine that is nobody's yet: what an emulator does for the first
        time takes it four times as long."""
        if not self.ready:
            raise Refused(503, "starting")
        said, context = [], self.contexts.own_of("python")

        async def keep(lines, _last):
            said.append(lines)

        await context.execute(REHEARSAL[0], {}, keep, quiet=True)
        if context.kernel.dead or b'"type": "error"' in b"".join(said):
            raise Refused(500, f"The rehearsal failed: {b''.join(said).decode()}")

    async def begin(self):
        """Makes all that sandboxes find, and shows that it works."""
        listening = await asyncio.start_server(self.serve, "127.0.0.1", PORT, limit=LONGEST_HEAD)
        for language in AT_ONCE:
            self.contexts.own_of(language)
        first = self.contexts.own_of("python")
        for code in REHEARSAL:
            await ask({"code": code})
        # What runs JavaScript is read from the disk by then.
        await ask({"code": "1 + 1", "language": "javascript"})
        self.contexts.own_of("javascript").end()
        await first.restart()
        gc.collect()
        gc.freeze()
        self.ready = True
        await listening.serve_forever()


async def left(reader):
    """Waits until a client has nothing more to say."""
    while await reader.read(4096):
        continue


async def ask(fields):
    """Has this very server run something."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    body = json.dumps(fields).encode()
    writer.write(b"POST /execute HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    said = await reader.read()
    writer.close()
    if b"end_of_execution" not in said:
        raise RuntimeError(f"{fields} came to {said}")


if __name__ == "__main__":
    asyncio.run(Server().begin())
