"""Runs Python for the server: IPython's shell, in a process for each context.

This program loads what is worth having once, and forks whenever the server asks for a kernel: one begins in no time, and
shares what was loaded. It is asked on a socket (its first argument): a message with the kernel's folder, and four pipes
with it: requests, events, and what the kernel prints. It answers with the process id.

A request is a line of JSON; an event is a line as the server's client gets it, and `end` is the last of an execution, or
`left` where the kernel goes after it.
"""

import asyncio
import gc
import json
import os
import random
import signal
import socket
import sys
import traceback

# The folder of this program is no place of the user's modules.
sys.path.pop(0)
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import berth_formats

sys.path.pop(0)

# What is loaded before anybody asks; a program that has no use for it shares its memory with all that have not either.
WORTH_LOADING = ("numpy", "pandas", "matplotlib.pyplot", "PIL.Image")
# What every kernel does for the first time: what it loads and compiles on the way is there in all of them.
REHEARSAL = (
    "1 + 1",
    "print('')",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.title('a')\nplt.show()",
    "import pandas as pd\npd.DataFrame({'a': [1.5, 2]})",
    "1 / 0",
    "import asyncio\nawait asyncio.sleep(0)",
)
# A longer event is not sent, in bytes. A figure has some hundred thousand.
LONGEST = 32 << 20
# A kernel is to go before the server where there is too little memory; of kernels, the one that holds most of it.
FIRST_TO_GO = 100


class Events:
    """Where the shell's events go: a pipe, or nowhere while it rehearses."""

    def __init__(self):
        self.fd, self.files = None, ()

    def send(self, **event):
        line = json.dumps(event).encode()
        if len(line) > LONGEST:
            kept = {"type": "result", "is_main_result": event.get("is_main_result", False)}
            line = json.dumps({**kept, "text": f"(left out: {len(line)} bytes, of at most {LONGEST})"}).encode()
        self.write(line)

    def end(self, leaving):
        self.write(b"left" if leaving else b"end")

    def write(self, line):
        if self.fd is None:
            return
        # What was printed before comes before it.
        self.flush()
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    def flush(self):
        """Sends on what was printed. A cell may have closed these files, or put others in their place."""
        for file in (sys.stdout, sys.stderr, *self.files):
            try:
                file.flush()
            except Exception:
                continue


EVENTS = Events()


class Publisher(DisplayPublisher):
    """What `display` shows."""

    def publish(self, data, metadata=None, source=None, **_):
        EVENTS.send(**berth_formats.result(data, main=False))

    def clear_output(self, wait=False):
        """What was sent stays sent."""


class Hook(DisplayHook):
    """What the last expression of a cell gives."""

    def write_output_prompt(self):
        """A result has no number."""

    def finish_displayhook(self):
        """What a cell put in the place of standard output may bear no flush."""
        try:
            super().finish_displayhook()
        except Exception:
            return

    def write_format_data(self, format_dict, md_dict=None):
        EVENTS.send(**berth_formats.result(format_dict, main=True))


class Shell(InteractiveShell):
    """IPython's shell, which tells what comes of a cell by events."""

    display_pub_class = Type(Publisher)
    displayhook_class = Type(Hook)
    leaving = False

    def enable_gui(self, gui=None):
        """There is no screen."""

    def ask_exit(self):
        self.leaving = True

    def _showtraceback(self, etype, evalue, stb):
        EVENTS.send(type="error", name=etype.__name__, value=str(evalue), traceback=self.InteractiveTB.stb2text(stb))

    async def rehearse(self, code):
        """Runs a cell of which nothing is sent, and nothing stays."""
        hook, names = self.displayhook, dict(self.user_ns)
        shown, last, EVENTS.fd, fd = dict(names["_oh"]), (hook._, hook.__, hook.___), None, EVENTS.fd
        try:
            await self.execute(code, keep=False)
        finally:
            EVENTS.fd, (hook._, hook.__, hook.___) = fd, last
        for name in set(self.user_ns) - set(names):
            del self.user_ns[name]
        self.user_ns.update(names)
        names["_oh"].clear()
        names["_oh"].update(shown)

    async def execute(self, code, keep=True):
        """Runs a cell. An interrupt ends it."""
        EVENTS.send(type="number_of_executions", execution_count=self.execution_count)
        cell, failure = code, None
        try:
            cell = self.transform_cell(code)
        except Exception:
            failure = sys.exc_info()
        told = {"transformed_cell": cell, "preprocessing_exc_tuple": failure}
        running = self.run_cell_async(code, store_history=keep, **told)
        try:
            if self.should_run_async(code, **told):
                result = await cancelled_by_interrupts(running)
            else:
                result = at_once(running)
            self.events.trigger("post_execute")
            self.events.trigger("post_run_cell", result)
        except (KeyboardInterrupt, asyncio.CancelledError):
            EVENTS.send(type="error", name="KeyboardInterrupt", value="", traceback="")


def ignore(*_):
    """A handler, not SIG_IGN, which programs would inherit that a cell starts."""


def at_once(running):
    """Runs a cell that awaits nothing: an interrupt is an exception in it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        running.send(None)
    except StopIteration as end:
        return end.value
    finally:
        signal.signal(signal.SIGINT, ignore)
    raise RuntimeError("a cell that was to await nothing did")


async def cancelled_by_interrupts(running):
    """Runs a cell that awaits something: an interrupt cancels that."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(running)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, ignore)


def make_shell():
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.PlainTextFormatter.max_seq_length = 0
    shell = Shell.instance(config=config)
    shell.set_hook("show_in_pager", page.as_hook(page.display_page), 99)
    berth_formats.register(shell.display_formatter)
    berth_formats.show_images()
    return shell


def rehearse(shell):
    """Loads and does what most do, and leaves nothing of it."""
    for name in WORTH_LOADING:
        try:
            __import__(name)
        except ImportError:
            # An image may have less.
            continue
    shell.run_line_magic("matplotlib", "inline")
    for cell in REHEARSAL:
        asyncio.run(shell.execute(cell, keep=False))
    shell.reset(new_session=False)
    # What the last results were called, which a reset removes and a new shell has.
    shell.displayhook._ = shell.displayhook.__ = shell.displayhook.___ = ""
    shell.user_ns.update(_="", __="", ___="")
    gc.collect()
    # What stands here stays: a collection in a kernel need not look at it, and so shares it.
    gc.freeze()


def become(env, again):
    """Makes a copy of a machine's memory somebody of its own: what is random begins anew, and variables change."""
    for name, value in env.items():
        set_variable(name, value)
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    # In a process that was forked, OpenSSL asks the machine before it first answers; later it would not.
    if again and (ssl := sys.modules.get("ssl")):
        ssl.RAND_add(os.urandom(32), 32.0)


def set_variable(name, value):
    """Sets a variable, or removes it where there is no value."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


class environment:
    """The variables of one execution."""

    def __init__(self, variables):
        self.variables = variables or {}

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.variables}
        os.environ.update(self.variables)

    def __exit__(self, *_):
        for name, value in self.before.items():
            set_variable(name, value)


async def execute(shell, request):
    """Runs a cell with its variables. What fails beside it is told, and ends nothing."""
    try:
        with environment(request["env_vars"]):
            if request["quiet"]:
                await shell.rehearse(request["code"])
            else:
                await shell.execute(request["code"])
    except Exception as error:
        EVENTS.send(type="error", name=type(error).__name__, value=str(error), traceback="")


async def serve(shell, requests):
    """Runs what is asked, until nobody asks any more."""
    loop, reader, became = asyncio.get_running_loop(), asyncio.StreamReader(limit=1 << 30), False
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(requests, "rb"))
    while line := await reader.readline():
        request = json.loads(line)
        if (env := request.get("become")) is not None:
            become(env, again=became)
            became = not request["quiet"]
        await execute(shell, request)
        EVENTS.end(shell.leaving)
        if shell.leaving:
            return


def be_kernel(shell, folder, requests, events, stdout, stderr):
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, ignore)
    EVENTS.fd = events
    for fd, number in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout, sys.stderr = [
        open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False) for fd in (1, 2)
    ]
    sys.__stdout__, sys.__stderr__ = EVENTS.files = sys.stdout, sys.stderr
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(FIRST_TO_GO))
    os.chdir(folder)
    become({}, again=False)
    asyncio.run(serve(shell, requests))


def main():
    asked = socket.socket(fileno=int(sys.argv[1]))
    shell = make_shell()
    rehearse(shell)
    asked.send(b"ready")
    # Who ended need not be waited for: the server sees it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        folder, pipes, _, _ = socket.recv_fds(asked, 4096, 4)
        if not folder:
            return
        pid = os.fork()
        if pid == 0:
            asked.close()
            try:
                be_kernel(shell, folder.decode(), *pipes)
            except BaseException:
                traceback.print_exc()
            finally:
                # What a program does at its end was for the one that forked.
                EVENTS.flush()
                os._exit(0)
        for pipe in pipes:
            os.close(pipe)
        asked.send(str(pid).encode())


if __name__ == "__main__":
    main()
