"""E2B's SDK for Python, unchanged, at Berth. Wants E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL."""

import asyncio
import io
import json
import os
import threading
import time
import urllib.error
import urllib.request

from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
    __file__ as installed,
)


def fails(kind, what):
    try:
        what()
    except kind as error:
        return error
    raise AssertionError(f"{what} did not fail with {kind}")


def until(what, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come")


def control(box):
    info = box.get_info()
    assert info.sandbox_id == box.sandbox_id and info.state == SandboxState.RUNNING, info
    assert info.metadata == {"purpose": "a test & more"}, info
    assert info.name == "base", info
    left = (info.end_at - info.started_at).total_seconds()
    assert 100 < left < 400, info
    box.set_timeout(900)
    assert (box.get_info().end_at - info.end_at).total_seconds() > 300
    assert box.is_running()
    listed = Sandbox.list(query=SandboxQuery(metadata={"purpose": "a test & more"})).next_items()
    assert [one.sandbox_id for one in listed] == [box.sandbox_id], listed
    assert not Sandbox.list(query=SandboxQuery(metadata={"purpose": "another"})).next_items()
    assert not Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
    other = Sandbox.connect(box.sandbox_id)
    assert other.commands.run("echo $GREETING").stdout == "hello\n"


def commands(box):
    done = box.commands.run("echo out; echo err >&2; pwd; whoami")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n/home/user\nuser\n", "err\n", 0), done
    failed = fails(CommandExitException, lambda: box.commands.run("echo before; exit 3"))
    assert (failed.exit_code, failed.stdout) == (3, "before\n"), failed
    assert box.commands.run("id -u", user="root").stdout == "0\n"
    assert box.commands.run("sudo id -u").stdout == "0\n"
    assert box.commands.run("echo $A; pwd", envs={"A": "b c"}, cwd="/tmp").stdout == "b c\n/tmp\n"
    fails(SandboxException, lambda: box.commands.run("true", cwd="/nowhere"))
    # A character that is cut in two, and bytes that come at once.
    lines = []
    many = box.commands.run("for i in $(seq 300); do echo 'ä€' $i; done", on_stdout=lines.append)
    assert many.stdout.count("ä€") == 300 and "".join(lines) == many.stdout
    fails(TimeoutException, lambda: box.commands.run("sleep 60", timeout=2))
    until(lambda: not [one for one in box.commands.list() if "sleep 60" in " ".join(one.args)])
    running = box.commands.run("read line; echo got $line; cat", background=True, stdin=True)
    found = [one for one in box.commands.list() if one.pid == running.pid]
    assert found and found[0].cmd == "/bin/bash" and found[0].args[:2] == ["-l", "-c"], found
    box.commands.send_stdin(running.pid, "a line\nthe rest")
    if hasattr(box.commands, "close_stdin"):
        box.commands.close_stdin(running.pid)
        assert running.wait().stdout == "got a line\nthe rest"
    else:
        running.kill()
    asleep = box.commands.run("sleep 300", background=True)
    assert box.commands.kill(asleep.pid)
    until(lambda: not box.commands.kill(asleep.pid))
    again = box.commands.run("sleep 1; echo later", background=True)
    again.disconnect()
    assert box.commands.connect(again.pid).wait().stdout == "later\n"
    fails(NotFoundException, lambda: box.commands.connect(999_999))


def files(box):
    written = box.files.write("notes/a.txt", "first")
    assert (written.path, written.name) == ("/home/user/notes/a.txt", "a.txt"), written
    assert box.files.read("notes/a.txt") == "first" == box.files.read("/home/user/notes/a.txt")
    assert box.files.write("/tmp/b", b"\0\xff").path == "/tmp/b"
    assert bytes(box.files.read("/tmp/b", format="bytes")) == b"\0\xff"
    assert b"".join(box.files.read("/tmp/b", format="stream")) == b"\0\xff"
    fails(SandboxException, lambda: box.files.read("nothing"))
    fails(SandboxException, lambda: box.files.write("/proc/nothing", "no"))
    assert box.files.write("/root/x", "yes", user="root").path == "/root/x"
    assert box.files.read("/root/x", user="root") == "yes" and box.files.get_info("/root/x").owner == "root"
    both = box.files.write_files([{"path": "m/1", "data": "one"}, {"path": "m/2", "data": "two"}])
    assert [one.path for one in both] == ["/home/user/m/1", "/home/user/m/2"], both
    assert box.files.read("m/2") == "two"
    info = box.files.get_info("notes/a.txt")
    assert (info.size, info.owner, info.group, info.permissions) == (5, "user", "user", "-rw-r--r--"), info
    assert info.type.value == "file" and info.mode == 0o644 and info.symlink_target is None
    box.commands.run("ln -s notes link && ln -s /nowhere broken")
    link = box.files.get_info("link")
    assert link.type.value in ("dir", "symlink") and link.symlink_target == "/home/user/notes", link
    assert {one.name for one in box.files.list(".")} >= {"notes", "m", "link"}
    assert [one.path for one in box.files.list("notes")] == ["/home/user/notes/a.txt"]
    deep = {one.path for one in box.files.list("/home/user/m", depth=2)}
    assert deep == {"/home/user/m/1", "/home/user/m/2"}, deep
    fails(SandboxException, lambda: box.files.list("nothing"))
    fails(InvalidArgumentException, lambda: box.files.list("notes/a.txt"))
    assert box.files.make_dir("x/y/z") and not box.files.make_dir("x/y/z")
    assert box.files.rename("notes/a.txt", "x/moved").path == "/home/user/x/moved"
    assert box.files.exists("x/moved") and not box.files.exists("notes/a.txt")
    box.files.remove("x")
    assert not box.files.exists("x")
    box.files.remove("x")
    assert "MemTotal" in box.files.read("/proc/meminfo")
    big = os.urandom(3 << 20)
    box.files.write("big", io.BytesIO(big))
    assert bytes(box.files.read("big", format="bytes")) == big
    written = box.files.write("packed", big, gzip=True, metadata={"Author": "me"})
    assert bytes(box.files.read("packed", format="bytes", gzip=True)) == big
    assert written.metadata == {"author": "me"} == box.files.get_info("packed").metadata, written


def whole(box):
    """Files are root's to write and the user's to have; what a name stands for is not lost by another's move."""
    assert box.files.write("/app/main.py", "1").path == "/app/main.py"
    assert (box.files.get_info("/app").owner, box.files.get_info("/app/main.py").owner) == ("user", "user")
    assert box.files.make_dir("/code") and box.files.exists("/root/nothing") is False
    box.files.write("there/kept", "precious")
    box.files.write("note", "n")
    fails(InvalidArgumentException, lambda: box.files.rename("note", "there"))
    box.files.write("other/mine", "m")
    fails(SandboxException, lambda: box.files.rename("other", "there"))
    assert box.files.read("there/kept") == "precious" and box.files.read("other/mine") == "m"
    fails(InvalidArgumentException, lambda: box.files.make_dir("note"))
    assert box.files.exists("note/below") is False
    large = fails(SandboxException, lambda: box.commands.run("true " + "x" * 300_000))
    assert "256" in str(large) or "262144" in str(large), large


def served(box):
    """A server inside answers for itself, whoever asks with a token of it."""
    program = """import http.server
class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path[1:4]))
        self.send_header('Set-Cookie', 'a=b; Domain=localhost; Path=/')
        self.send_header('Location', '/elsewhere')
        self.end_headers()
        self.wfile.write(repr(sorted(name.lower() for name in self.headers)).encode())
http.server.HTTPServer(('127.0.0.1', 3000), Server).serve_forever()
"""
    box.files.write("server.py", program)
    server = box.commands.run("exec python3 server.py", background=True, timeout=0)
    base = os.environ["E2B_SANDBOX_URL"]
    tokens = {"E2b-Traffic-Access-Token": box.traffic_access_token, "Authorization": "Bearer app"}

    def ask(path, port=3000, **headers):
        request = urllib.request.Request(base + path, headers=headers)
        request.add_header("E2b-Sandbox-Id", box.sandbox_id)
        request.add_header("E2b-Sandbox-Port", str(port))
        try:
            answer = urllib.request.build_opener(Still).open(request)
        except urllib.error.HTTPError as error:
            answer = error
        return answer.status, answer.headers, answer.read().decode()

    until(lambda: ask("/200", **tokens)[0] == 200)
    for status in [200, 302, 404, 500]:
        told, headers, said = ask(f"/{status}", **tokens)
        assert told == status and headers["Set-Cookie"] == "a=b; Path=/", (told, dict(headers))
        assert "authorization" in said and "token" not in said, said
    assert ask("/200", **{"X-API-Key": os.environ["E2B_API_KEY"]})[0] == 200
    assert ask("/200")[0] == 401
    status, _, said = ask("/200", port=3001, **tokens)
    assert status == 502 and "port is not open" in said, said
    # That token is for servers alone.
    assert ask("/health", port=49983, **{"X-Access-Token": box.traffic_access_token})[0] == 401
    server.kill()


class Still(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def signed(box):
    box.files.write("signed", "by address")
    address = box.download_url("signed")
    assert urllib.request.urlopen(address).read() == b"by address"
    over = box.download_url("signed", use_signature_expiration=-10)
    assert fails(urllib.error.HTTPError, lambda: urllib.request.urlopen(over)).code == 401
    other = address.replace("path=signed", "path=big")
    assert fails(urllib.error.HTTPError, lambda: urllib.request.urlopen(other)).code == 401
    root = urllib.request.Request(address, headers={"Authorization": "Basic cm9vdDo="})
    assert urllib.request.urlopen(root).read() == b"by address", "as whom it was signed for"
    error = fails(urllib.error.HTTPError, lambda: urllib.request.urlopen(over))
    assert json.load(error) == {"code": 401, "message": "signature is already expired", "error_code": "unauthorized"}
    boundary = "line"
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nsent\r\n--{boundary}--\r\n'
    send = urllib.request.Request(box.upload_url("sent"), body.encode(), method="POST")
    send.add_header("Content-Type", f"multipart/form-data; boundary={boundary}")
    urllib.request.urlopen(send).read()
    assert box.files.read("sent") == "sent"


def watched(box):
    box.files.make_dir("watched/below")
    watch = box.files.watch_dir("watched", recursive=True)
    box.files.write("watched/below/a", "x")
    seen = []

    def came():
        seen.extend(watch.get_new_events())
        return any(one.name == "below/a" and one.type == FilesystemEventType.CREATE for one in seen)

    until(came)
    until(lambda: seen.extend(watch.get_new_events()) or any(one.type == FilesystemEventType.WRITE for one in seen))
    box.commands.run("rm watched/below/a")
    until(lambda: seen.extend(watch.get_new_events()) or any(one.type == FilesystemEventType.REMOVE for one in seen))
    watch.stop()
    fails(SandboxException, watch.get_new_events)
    fails(SandboxException, lambda: box.files.watch_dir("nothing"))


def terminal(box):
    seen = []
    pty = box.pty.create(PtySize(rows=24, cols=80))
    box.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    box.pty.send_stdin(pty.pid, b"stty size; echo sum=$((40 + 2)); exit 4\n")
    failed = fails(CommandExitException, lambda: pty.wait(on_pty=lambda bytes: seen.append(bytes)))
    said = b"".join(seen)
    assert failed.exit_code == 4 and b"30 100" in said and b"sum=42" in said, said


def lives(box):
    box.files.write("kept", "1")
    asleep = box.commands.run("sleep 300", background=True)
    assert Sandbox.pause(box.sandbox_id) is not False
    assert box.get_info().state == SandboxState.PAUSED
    assert not box.is_running()
    fails(SandboxException, lambda: box.commands.run("true"))
    again = Sandbox.connect(box.sandbox_id, timeout=900)
    assert again.files.read("kept") == "1"
    assert asleep.pid in [one.pid for one in again.commands.list()]


def copies(box):
    tagged = box.create_snapshot(name="tagged:v1")
    fails(SandboxException, lambda: Sandbox.create("tagged:v2"))
    assert Sandbox.delete_snapshot("tagged:v1") and not Sandbox.delete_snapshot(tagged.snapshot_id)
    point = box.create_snapshot()
    box.files.write("kept", "2")
    old = Sandbox.create(point.snapshot_id, timeout=120)
    assert old.files.read("kept") == "1"
    listed = Sandbox.list_snapshots(sandbox_id=box.sandbox_id).next_items()
    assert point.snapshot_id in [one.snapshot_id for one in listed], listed
    assert Sandbox.delete_snapshot(point.snapshot_id)
    assert not Sandbox.delete_snapshot(point.snapshot_id)
    assert old.kill()
    if hasattr(box, "fork"):
        forks = box.fork(count=2, timeout=120)
        assert [one.files.read("kept") for one in forks] == ["2", "2"], forks
        assert all(one.kill() for one in forks)


async def asynchronous():
    box = await AsyncSandbox.create(timeout=120)
    try:
        done = await asyncio.gather(*(box.commands.run(f"echo {n}") for n in range(8)))
        assert [one.stdout for one in done] == [f"{n}\n" for n in range(8)]
        events = []
        watch = await box.files.watch_dir("/home/user", on_event=events.append)
        await box.files.write("seen", "x")
        for _ in range(100):
            if any(one.name == "seen" for one in events):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(events)
        await watch.stop()
    finally:
        assert await box.kill()


def ends(box):
    """Who waits for a command in a sandbox that is killed is told so, and soon."""
    told = []

    def run():
        try:
            box.commands.run("sleep 300", timeout=0)
            told.append("nothing")
        except Exception as error:
            told.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    until(lambda: [one for one in box.commands.list() if "sleep 300" in " ".join(one.args)])
    assert box.kill() and not box.kill()
    waiting.join(30)
    assert told and isinstance(told[0], SandboxException), told
    fails(SandboxException, lambda: box.commands.run("true"))
    fails(SandboxException, lambda: Sandbox.connect(box.sandbox_id))
    assert Sandbox.kill("an-id-of-another-platform") is False


def main():
    fails(SandboxException, lambda: Sandbox.create("no-such-template"))
    box = Sandbox.create(timeout=300, metadata={"purpose": "a test & more"}, envs={"GREETING": "hello"})
    try:
        for part in [control, commands, files, whole, served, signed, watched, terminal, lives, copies]:
            part(box)
            print(part.__name__, "ok", flush=True)
        asyncio.run(asynchronous())
        ends(box)
    finally:
        box.kill()
    print(installed, "ok")


main()
