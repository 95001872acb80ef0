"""The server of the image code-interpreter, with a kernel for tests: python3 -m unittest discover tests/code_interpreter"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "../../images/code-interpreter/rootfs/usr/lib/berth/code-interpreter")
sys.dont_write_bytecode = True
sys.path.insert(0, PROGRAM)
import kernels
import server

CHUNKED = b"POST /execute HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class Case(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        shutil.copy(os.path.join(HERE, "kernel.py"), os.path.join(folder, "python_kernel.py"))
        self.boot, self.variables = os.path.join(folder, "boot_id"), os.path.join(folder, "environment")
        for module, name, value in (
            (kernels, "HERE", folder), (server, "BOOT_ID", self.boot), (server, "VARIABLES", self.variables),
        ):
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        self.server = server.Server()
        self.listening = await asyncio.start_server(self.server.serve, "127.0.0.1", 0, limit=server.LONGEST_HEAD)
        self.port = self.listening.sockets[0].getsockname()[1]

    async def asyncTearDown(self):
        self.listening.close()
        for context in self.server.contexts.all.values():
            context.end()
        self.server.contexts.makers["python"].end()
        # Who listens to a kernel buries it.
        await asyncio.sleep(0.05)

    async def raw(self, data):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        said = await reader.read()
        writer.close()
        head, _, body = said.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def ask(self, method, path, fields=None):
        body = json.dumps(fields or {}).encode()
        return await self.raw(b"%s %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (method, path, len(body), body))

    async def run_code(self, code, **fields):
        """The events of a cell."""
        status, body = await self.ask(b"POST", b"/execute", {"code": code, **fields})
        self.assertEqual(status, 200, body)
        return events_of(body)

    def become(self, boot_id, variables):
        """Makes the machine another sandbox's."""
        with open(self.boot, "w") as boot, open(self.variables, "w") as file:
            boot.write(boot_id)
            json.dump(variables, file)

    def slow_down(self, seconds):
        """Has kernels for Python take their time to start; returns those that did."""
        maker, started = self.server.contexts.makers["python"], []
        start = maker.start

        async def slowly(folder):
            started.append(await start(folder))
            await asyncio.sleep(seconds)
            return started[-1]

        maker.start = slowly
        return started

    async def leave(self, code):
        """Has a cell run, and leaves once it says something."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"code": code}).encode()
        writer.write(b"POST /execute HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await reader.readuntil(b"begun")
        writer.close()


def events_of(body):
    """What the chunks of an answer hold."""
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return [json.loads(line) for line in whole.splitlines()]


def printed(events, kind="stdout"):
    return "".join(event["text"] for event in events if event["type"] == kind)


class Executions(Case):
    async def test_what_is_printed_comes_before_what_is_said_after_it(self):
        events = await self.run_code("say(type='number_of_executions'); print('a', flush=True); say(type='result')")
        self.assertEqual([event["type"] for event in events], ["number_of_executions", "stdout", "result", "end_of_execution"])
        self.assertIsInstance(events[1]["timestamp"], int)
        events = await self.run_code("os.write(2, b'e')")
        self.assertEqual([event["type"] for event in events], ["stderr", "end_of_execution"])

    async def test_long_output_comes_whole_and_in_pieces(self):
        events = await self.run_code("os.write(1, 'ü'.encode() * 500_000)")
        self.assertEqual(printed(events), "ü" * 500_000)
        self.assertLessEqual(max(len(event.get("text", "")) for event in events), kernels.AT_ONCE)
        events = await self.run_code("os.write(1, b'a\\xff\\n')")
        self.assertEqual(printed(events), "a\ufffd\n")

    async def test_a_line_is_ascii(self):
        _, body = await self.ask(b"POST", b"/execute", {"code": "print('ü\u2028')"})
        self.assertTrue(body.isascii())

    async def test_cells_of_a_context_queue_in_order(self):
        cells = [self.run_code(f"os.write(1, b'{number}'); import time; time.sleep(0.05)") for number in range(4)]
        self.assertEqual([printed(events) for events in await asyncio.gather(*cells)], ["0", "1", "2", "3"])

    async def test_variables_are_of_the_cell_and_of_the_sandbox(self):
        show = "print(request['env_vars'], request.get('become'), flush=True)"
        self.assertEqual(printed(await self.run_code(show, env_vars={"A": 1})), "{'A': '1'} {}\n")
        self.become("another", {"OF_BOX": "b"})
        self.assertEqual(printed(await self.run_code(show)), "{} {'OF_BOX': 'b'}\n")
        self.assertEqual(printed(await self.run_code(show)), "{} None\n")

    async def test_a_sandbox_tells_only_what_changed(self):
        show = "print(request.get('become'), flush=True)"
        for boot, variables, told in (
            ("1", {"A": "a", "B": "b"}, {"A": "a", "B": "b"}),
            ("2", {"A": "a", "C": "c"}, {"B": None, "C": "c"}),
            ("3", {"A": "a", "C": "c"}, {}),
        ):
            self.become(boot, variables)
            events = await self.run_code(show)
            self.assertEqual(printed(events), f"{told}\n")
        await self.run_code("os._exit(1)")
        self.assertEqual(printed(await self.run_code(show)), "{'A': 'a', 'C': 'c'}\n")

    async def test_who_leaves_interrupts(self):
        await self.run_code("interrupted = False; import time")
        await self.leave("print('begun', flush=True); time.sleep(60)")
        self.assertEqual(printed(await self.run_code("print(interrupted, flush=True)")), "True\n")
        await self.leave("print('begun', flush=True)\nwhile True: os.write(1, b'x' * 1000)")
        self.assertEqual(printed(await self.run_code("print(interrupted, flush=True)")), "True\n")

    async def test_what_bears_an_interrupt_is_ended(self):
        self.addCleanup(setattr, kernels, "PATIENCE", kernels.PATIENCE)
        kernels.PATIENCE = 0.1
        await self.run_code("import signal, time; here = True")
        await self.leave("signal.signal(signal.SIGINT, signal.SIG_IGN); print('begun', flush=True); time.sleep(60)")
        self.assertEqual(printed(await self.run_code("print('here' in globals(), flush=True)")), "False\n")

    async def test_who_waits_in_a_queue_may_leave(self):
        first = asyncio.create_task(self.run_code("import time; time.sleep(0.2); os.write(1, b'1')"))
        await asyncio.sleep(0.05)
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /execute HTTP/1.1\r\nContent-Length: 24\r\n\r\n" + b'{"code": "left = True"} ')
        await asyncio.sleep(0.05)
        writer.close()
        self.assertEqual(printed(await first), "1")
        self.assertEqual(printed(await self.run_code("print('left' in globals(), flush=True)")), "False\n")

    async def test_a_kernel_that_dies_is_told_and_begun_anew(self):
        events = await self.run_code("print('last', flush=True); os._exit(1)")
        self.assertEqual(
            [event.get("name", event["type"]) for event in events],
            ["stdout", "UnexpectedEndOfExecution", "unexpected_end_of_execution", "end_of_execution"],
        )
        self.assertEqual(printed(await self.run_code("os.write(1, b'again')")), "again")

    async def test_a_child_that_holds_its_pipes_does_not_hide_its_death(self):
        events = await self.run_code("import subprocess, sys; subprocess.Popen(['sleep', '5'], start_new_session=True); os._exit(1)")
        self.assertEqual(events[-1]["type"], "end_of_execution")

    async def test_a_kernel_that_leaves_is_followed_by_another(self):
        events = await self.run_code("leaving = True; os.write(1, b'last')")
        self.assertEqual([event["type"] for event in events], ["stdout", "end_of_execution"])
        events = await self.run_code("os.write(1, b'leaving' if 'leaving' in globals() else b'fresh')")
        self.assertEqual((printed(events), events[-1]["type"]), ("fresh", "end_of_execution"))

    async def test_a_kernel_that_cannot_start_is_told(self):
        async def fail(_folder):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        self.server.contexts.makers["python"].start = fail
        events = await self.run_code("1")
        self.assertEqual([event["type"] for event in events], ["error", "end_of_execution"])
        self.assertIn("temporarily", events[0]["value"])

    async def test_what_makes_kernels_is_buried_and_begun_anew(self):
        await self.run_code("leaving = True")
        child = self.server.contexts.makers["python"].child
        os.kill(child.pid, signal.SIGKILL)
        self.assertEqual(printed(await self.run_code("os.write(1, b'again')")), "again")
        self.assertEqual(child.returncode, -signal.SIGKILL)

    async def test_a_kernel_that_leads_no_group_yet_is_ended(self):
        mine, its = kernels.pipes_for_one()
        self.addCleanup(lambda: [os.close(fd) for fd in its])
        child = subprocess.Popen(["sleep", "60"])
        self.addCleanup(child.kill)
        kernel = kernels.Kernel(child.pid, mine, child)
        kernel.kill()
        await asyncio.wait_for(kernel.dropping, 5)
        self.assertEqual(child.returncode, -signal.SIGKILL)

    async def test_a_rehearsal_that_fails_is_told(self):
        self.addCleanup(setattr, server, "REHEARSAL", server.REHEARSAL)
        self.server.ready = True
        for code, status in (("1", 200), ("say(type='error', name='a')", 500), ("os._exit(1)", 500)):
            server.REHEARSAL = (code,)
            self.assertEqual((await self.ask(b"GET", b"/rehearsal"))[0], status, code)

    async def test_a_client_that_waits_hears_something(self):
        self.addCleanup(setattr, server, "ALIVE", server.ALIVE)
        server.ALIVE = 0.05
        events = await self.run_code("import time; time.sleep(0.3)")
        self.assertIn({"type": "keepalive"}, events)


class Contexts(Case):
    async def made(self, **fields):
        status, body = await self.ask(b"POST", b"/contexts", fields)
        self.assertEqual(status, 200, body)
        return json.loads(body)

    async def test_they_are_apart_listed_and_removed(self):
        one = await self.made(cwd="/tmp", language="Python")
        self.assertEqual((one["cwd"], one["language"]), ("/tmp", "python"))
        self.assertEqual(printed(await self.run_code("a = 1; print(os.getcwd(), flush=True)", context_id=one["id"])), "/tmp\n")
        self.assertEqual(printed(await self.run_code("print('a' in globals(), flush=True)")), "False\n")
        self.assertIn(one, json.loads((await self.ask(b"GET", b"/contexts"))[1]))
        path = f"/contexts/{one['id']}".encode()
        self.assertEqual((await self.ask(b"DELETE", path))[0], 200)
        self.assertEqual((await self.ask(b"DELETE", path))[0], 404)
        self.assertEqual((await self.ask(b"POST", b"/execute", {"code": "1", "context_id": one["id"]}))[0], 404)

    async def test_a_restart_ends_what_runs(self):
        one = await self.made()
        running = asyncio.create_task(self.run_code("a = 1; import time; time.sleep(60)", context_id=one["id"]))
        await asyncio.sleep(0.1)
        self.assertEqual((await self.ask(b"POST", f"/contexts/{one['id']}/restart".encode()))[0], 200)
        self.assertEqual((await running)[0]["name"], "ContextRestarting")
        self.assertEqual(printed(await self.run_code("print('a' in globals(), flush=True)", context_id=one["id"])), "False\n")

    async def test_a_cell_of_a_removed_one_starts_nothing(self):
        one = await self.made()
        started = self.slow_down(0)
        first = asyncio.create_task(self.run_code("import time; time.sleep(60)", context_id=one["id"]))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(self.run_code("1", context_id=one["id"]))
        await asyncio.sleep(0.1)
        await self.ask(b"DELETE", f"/contexts/{one['id']}".encode())
        self.assertEqual((await first)[0]["name"], "UnexpectedEndOfExecution")
        events = await second
        self.assertEqual([event["type"] for event in events], ["error", "end_of_execution"])
        self.assertEqual(events[0]["value"], f"Context {one['id']} not found")
        self.assertEqual(started, [])

    async def test_one_that_is_removed_while_it_starts_is_ended(self):
        started = self.slow_down(0.3)
        running = asyncio.create_task(self.run_code("import time; time.sleep(5)"))
        await asyncio.sleep(0.2)
        self.server.contexts.remove(self.server.contexts.own_of("python").id)
        self.assertEqual((await running)[0]["name"], "Refused")
        await asyncio.sleep(0.1)
        self.assertEqual([kernel.dead for kernel in started], [True])

    async def test_one_that_is_restarted_while_it_starts_begins_anew(self):
        started = self.slow_down(0.3)
        running = asyncio.create_task(self.run_code("import time; time.sleep(5)"))
        await asyncio.sleep(0.2)
        await self.server.contexts.own_of("python").restart()
        self.assertEqual((await running)[0]["name"], "ContextRestarting")
        self.assertEqual([kernel.dead for kernel in started], [True, False])

    async def test_one_whose_folder_is_gone_says_so(self):
        folder = tempfile.mkdtemp()
        one = await self.made(cwd=folder)
        await self.run_code("leaving = True", context_id=one["id"])
        os.rmdir(folder)
        events = await self.run_code("1", context_id=one["id"])
        self.assertEqual([event["type"] for event in events], ["error", "end_of_execution"])
        self.assertIn(folder, events[0]["value"])

    async def test_what_cannot_be_is_said(self):
        for fields, word in (({"language": "r"}, b"python, javascript"), ({"cwd": "/nowhere"}, b"No such file"), ({"cwd": 1}, b"text")):
            status, body = await self.ask(b"POST", b"/contexts", fields)
            self.assertIn(word, body)
            self.assertIn(status, (400, 422))

    async def test_there_is_a_most(self):
        self.addCleanup(setattr, server, "MOST", server.MOST)
        server.MOST = 1
        await self.made()
        self.assertEqual((await self.ask(b"POST", b"/contexts"))[0], 409)


class Requests(Case):
    async def test_a_body_may_come_in_chunks(self):
        status, body = await self.raw(CHUNKED + b'8\r\n{"code":\r\n15;x=y\r\n "os.write(1, b\'1\')"}\r\n0\r\n\r\n')
        self.assertEqual((status, printed(events_of(body))), (200, "1"))

    async def test_what_is_no_request_is_refused(self):
        for data, status in (
            (b"POST /execute HTTP/1.1\r\nContent-Length: 1\r\n\r\n{", 400),
            (b"POST /execute HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]", 400),
            (b"POST /execute HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 422),
            (b"POST /execute HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
            (b"POST /execute HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (CHUNKED + b"fffffffff\r\n", 413),
            (b"GET /" + b"a" * server.LONGEST_HEAD + b" HTTP/1.1\r\n\r\n", 431),
            (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
            (b"GET /health HTTP/1.1\r\n\r\n", 503),
        ):
            self.assertEqual((await self.raw(data))[0], status, data[:60])

    async def test_what_no_kernel_can_take_is_refused(self):
        for fields in (
            {"code": "\ud800"}, {"env_vars": {"": "a"}}, {"env_vars": {"A=B": "a"}}, {"env_vars": {"A\0": "a"}},
            {"env_vars": {"A": "\0"}}, {"env_vars": {"A": "\ud800"}},
        ):
            status, body = await self.ask(b"POST", b"/execute", {"code": "1", **fields})
            self.assertEqual(status, 422, body)
        self.assertEqual((await self.ask(b"POST", b"/execute", {"code": "1", "context_id": "\ud800"}))[0], 404)

    async def test_a_context_and_a_language_are_too_much(self):
        status, _ = await self.ask(b"POST", b"/execute", {"code": "1", "context_id": "a", "language": "python"})
        self.assertEqual(status, 400)


if __name__ == "__main__":
    unittest.main()
