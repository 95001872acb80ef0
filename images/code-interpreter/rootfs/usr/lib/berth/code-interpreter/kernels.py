"""Kernels: the processes that run code, one for each context, as the server sees them.

A kernel reads requests from a pipe, a line of JSON each, and writes events to another, as lines for a client; `end` is the
last of an execution, or `left` where the kernel goes after it. What code prints comes by two more pipes, so that programs
that it starts print to the same.
"""

import asyncio
import codecs
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# What a pipe holds (pipe(7)): one look at it gets all that was printed before.
AT_ONCE = 65536
# A kernel cuts its events short of half of that, in bytes: what sends more is none.
LONGEST = 64 << 20
# How long code may take to end after an interrupt, in seconds. It may be busy in a library's own loop.
PATIENCE = 30


class Died(Exception):
    """A kernel is gone, and with it what it held."""


async def ready(fds, begin, stop):
    """Waits until one of these descriptors is ready, for as long as anybody waits."""
    waits = asyncio.get_running_loop().create_future()

    def note():
        if not waits.done():
            waits.set_result(None)

    for fd in fds:
        begin(fd, note)
    try:
        await waits
    finally:
        for fd in fds:
            stop(fd)


def line(**event):
    """An event as a client reads it. All of it is ASCII: some clients cut what they read anywhere, others at any character
    that ends a line."""
    return json.dumps(event).encode() + b"\n"


class Kernel:
    """A process that runs code."""

    def __init__(self, pid, pipes, child=None):
        self.pid, self.child = pid, child
        self.requests, self.events, stdout, stderr = pipes
        self.printed = {
            fd: (kind, codecs.getincrementaldecoder("utf-8")("replace")) for fd, kind in ((stdout, "stdout"), (stderr, "stderr"))
        }
        for fd in pipes:
            os.set_blocking(fd, False)
        self.end = os.pidfd_open(pid)
        self.dead, self.running, self.said, self.closed = False, False, bytearray(), set()
        # Whose it is: the sandbox that it last ran something for.
        self.boot = None
        # The sandbox's variables that it was last told.
        self.variables = {}
        self.dropping = asyncio.create_task(self._drop())

    def changed(self, variables):
        """Those of a sandbox's variables that it does not know yet; None for those that went."""
        names = self.variables | variables
        return {name: variables.get(name) for name in names if variables.get(name) != self.variables.get(name)}

    async def run(self, request, send):
        """Runs code, and has its events and what it prints sent on, with whether they are the last, until it has ended.
        Who stops waiting for that interrupts it."""
        await self._hold()
        self.running = True
        await self._ask(json.dumps(request).encode() + b"\n")
        await self._listen(send)
        self.dropping = asyncio.create_task(self._drop())

    async def interrupt(self):
        """Ends what runs, whether it likes or not."""
        try:
            if self.running:
                self._signal(signal.SIGINT)
                await self._listen_or_kill()
        except Died:
            return
        self.dropping = asyncio.create_task(self._drop())

    async def _listen_or_kill(self):
        try:
            async with asyncio.timeout(PATIENCE):
                await self._listen(nobody)
        except TimeoutError:
            self.kill()
            await self._listen(nobody)

    def kill(self):
        """Ends it with all that it started, but what left its group. Who listens to it buries it."""
        self._signal(signal.SIGKILL)

    async def _hold(self):
        """From here on it is heard by whoever has it run something."""
        self.dropping.cancel()
        await asyncio.wait([self.dropping])
        if self.dead:
            raise Died

    def _signal(self, number):
        if self.dead:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            self._signal_alone(number)

    def _signal_alone(self, number):
        """It leads no group before it has begun."""
        try:
            signal.pidfd_send_signal(self.end, number)
        except ProcessLookupError:
            return

    async def _ask(self, data):
        loop, rest = asyncio.get_running_loop(), memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.requests, rest) :]
            except BlockingIOError:
                await ready([self.requests], loop.add_writer, loop.remove_writer)
            except BrokenPipeError:
                # Its end says the rest.
                return

    async def _listen(self, send):
        while not self.dead:
            lines, ended = await self._hear()
            self.running = not ended
            if lines:
                await send(b"".join(lines), ended)
            if ended:
                return
        raise Died

    async def _drop(self):
        """Between executions it may print what nobody reads; it is not to wait for that."""
        while not self.dead:
            await self._hear()

    async def _hear(self):
        """Waits until it says something: lines for a client, and whether its execution ended."""
        loop = asyncio.get_running_loop()
        fds = {self.events, self.end, *self.printed} - self.closed
        await ready(fds, loop.add_reader, loop.remove_reader)
        gone, events = self._is_gone(), self._read(self.events)
        # What was printed before an event is there by now, and comes before it.
        printed, whole = self._take_printed(), []
        self.said += events
        if b"\n" in events:
            *whole, rest = bytes(self.said).split(b"\n")
            self.said = bytearray(rest)
        left = b"left" in whole
        ended = left or b"end" in whole
        lines = [each + b"\n" for each in whole if each not in (b"end", b"left")]
        # But for the first, which says that the execution begins.
        begins = 1 if lines and b"number_of_executions" in lines[0][:40] else 0
        lines[begins:begins] = printed
        if left:
            self.kill()
            await ready([self.end], loop.add_reader, loop.remove_reader)
        if gone or left or len(self.said) > LONGEST:
            self._signal(signal.SIGKILL)
            self._bury()
        return lines, ended

    def _take_printed(self):
        now, lines = time.time_ns(), []
        for fd, (kind, decoder) in self.printed.items():
            if text := decoder.decode(self._read(fd)):
                lines.append(line(type=kind, text=text, timestamp=now))
        return lines

    def _read(self, fd):
        if fd in self.closed:
            return b""
        try:
            data = os.read(fd, AT_ONCE)
        except BlockingIOError:
            return b""
        if not data:
            self.closed.add(fd)
        return data

    def _is_gone(self):
        """A child of it may hold its pipes, so that their end does not tell."""
        return bool(select.select([self.end], [], [], 0)[0])

    def _bury(self):
        if self.dead:
            return
        self.dead = True
        for fd in (self.requests, self.events, self.end, *self.printed):
            os.close(fd)
        if self.child:
            self.child.wait()


async def nobody(_lines, _last):
    """Who does not listen."""


def pipes_for_one():
    """The four pipes of a kernel: the server's ends, and its own."""
    (its_requests, requests), *others = [os.pipe() for _ in range(4)]
    return (requests, *(read for read, _ in others)), (its_requests, *(write for _, write in others))


def close(fds):
    for fd in fds:
        os.close(fd)


class Python:
    """Makes kernels for Python: one process has loaded what they need, and forks."""

    def __init__(self):
        self.asked, self.child, self.lock = None, None, asyncio.Lock()

    async def begin(self):
        """Starts that process, and waits until it has loaded all."""
        self.asked, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.asked.setblocking(False)
        with its:
            command = [sys.executable, "-E", os.path.join(HERE, "python_kernel.py"), str(its.fileno())]
            nothing = subprocess.DEVNULL
            self.child = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=nothing, stdout=nothing)
        await self._answer()

    async def start(self, folder):
        """A kernel that works in a folder."""
        async with self.lock:
            try:
                return await self._fork(folder)
            except (Died, OSError):
                # It may have been the one that asked for more memory than there is.
                self.end()
                await self.begin()
                return await self._fork(folder)

    async def _fork(self, folder):
        if self.asked is None:
            await self.begin()
        mine, its = pipes_for_one()
        try:
            socket.send_fds(self.asked, [folder.encode()], its)
            return Kernel(int(await self._answer()), mine)
        except BaseException:
            close(mine)
            raise
        finally:
            close(its)

    async def _answer(self):
        answer = await asyncio.get_running_loop().sock_recv(self.asked, 64)
        if not answer:
            self.end()
            raise Died("The process that makes kernels ended.")
        return answer

    def end(self):
        """Ends that process; kernels go on."""
        if self.asked:
            self.asked.close()
            self.asked = None
        if self.child:
            self.child.wait()


class JavaScript:
    """Makes kernels for JavaScript: each is a process of Node.js of its own. None runs before a sandbox is somebody's: Node
    draws random numbers for its keys when it begins, and sandboxes that share its memory would share them."""

    async def start(self, folder):
        """A kernel that works in a folder."""
        mine, its = pipes_for_one()
        try:
            child = self._spawn(folder, *its)
            return Kernel(child.pid, mine, child)
        except BaseException:
            close(mine)
            raise
        finally:
            close(its)

    def _spawn(self, folder, requests, events, stdout, stderr):
        program = [os.path.join(HERE, "node_kernel.js"), str(requests), str(events)]
        return subprocess.Popen(
            ["node", "--experimental-vm-modules", "--no-warnings", *program],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=[requests, events],
            cwd=folder, start_new_session=True,
        )
