"""The Model Context Protocol's SDK for Python, against a service: over HTTP, and by `berth mcp` over standard input."""

import asyncio
import base64
import json
import os
import sys

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BASE, KEY, BERTH = os.environ["BERTH_URL"], os.environ["BERTH_API_KEY"], os.environ["BERTH"]


def texts(result):
    assert not result.is_error, result
    return [block.text for block in result.content if block.type == "text"]


async def data(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    (text,) = texts(result)
    assert json.loads(text) == result.structured_content, result
    return result.structured_content


async def command(client, sandbox, line, **more):
    """What a command printed, and how it ended."""
    result = await client.call_tool("sandbox_run_command", {"sandbox_id": sandbox, "command": line, **more})
    output, end = texts(result)
    return output, json.loads(end)


async def runs(client, sandbox):
    output, end = await command(client, sandbox, "echo out; echo err >&2; exit 3")
    assert sorted(output.split()) == ["err", "out"] and end["exit_code"] == 3, (output, end)
    output, _ = await command(client, sandbox, "pwd; id -un; echo $A", env={"A": "b"})
    assert output.split() == ["/home/user", "user", "b"], output
    output, _ = await command(client, sandbox, "id -un; cat", user="root", stdin="read", cwd="/")
    assert output == "root\nread", output
    _, end = await command(client, sandbox, "sleep 60", timeout_seconds=1)
    assert end["timed_out"], end
    code = {"sandbox_id": sandbox, "code": "import sys\nprint(sum(range(10)), sys.stdin.read() == '')"}
    output, end = texts(await client.call_tool("sandbox_run_code", code))
    assert output == "45 True\n" and json.loads(end)["exit_code"] == 0, output
    # What lies where it runs is found, and nothing of it stays.
    await data(client, "sandbox_write_file", sandbox_id=sandbox, path="project/own.py", content="WORD = 'found'\n")
    code = {"sandbox_id": sandbox, "code": "import own\nprint(own.WORD)", "cwd": "/home/user/project"}
    assert texts(await client.call_tool("sandbox_run_code", code))[0] == "found\n", code
    code = {"sandbox_id": sandbox, "code": "ls -A; cat; exit 4", "language": "bash", "cwd": "/home/user/project"}
    output, end = texts(await client.call_tool("sandbox_run_code", code))
    assert sorted(output.split()) == ["__pycache__", "own.py"] and json.loads(end)["exit_code"] == 4, (output, end)
    code = {"sandbox_id": sandbox, "code": "def f():\n    return 1 / 0\n\nf()"}
    output, end = texts(await client.call_tool("sandbox_run_code", code))
    assert "    return 1 / 0" in output and json.loads(end)["exit_code"] == 1, output
    # Nobody waits, and yet it can be followed.
    output, end = await command(client, sandbox, "sleep 0.5; echo later", wait_seconds=0)
    asked = {"sandbox_id": sandbox, "pid": end["pid"], "wait_seconds": 30}
    assert texts(await client.call_tool("sandbox_read_output", asked))[0] == "later\n", end


async def is_told_in_parts(client, sandbox):
    """Long output is cut in its middle, and the rest is read."""
    output, end = await command(client, sandbox, "seq 1 20000")
    assert output.startswith("1\n2\n") and output.rstrip().endswith("20000"), output[:20]
    assert len(output) < 40_000 and end["left_out"]["from"] < end["left_out"]["to"], end
    parts, offset = "", 0
    while offset is not None:
        asked = {"sandbox_id": sandbox, "pid": end["pid"], "offset": offset}
        more, told = texts(await client.call_tool("sandbox_read_output", asked))
        parts, offset = parts + more, json.loads(told).get("next_offset")
    assert parts == "".join(f"{number}\n" for number in range(1, 20_001)), len(parts)
    last = {"sandbox_id": sandbox, "pid": end["pid"], "tail_bytes": 12}
    assert texts(await client.call_tool("sandbox_read_output", last))[0].endswith("19999\n20000\n")
    resource = await client.read_resource(end["output"])
    assert resource.contents[0].text.startswith("1\n2\n")


async def goes_on_in_the_background(client, sandbox):
    server = "python3 -c 'import sys\nfor line in sys.stdin: print(line.upper(), end=\"\")'"
    started = await data(client, "sandbox_run_command", sandbox_id=sandbox, command=server, background=True)
    one = {"sandbox_id": sandbox, "pid": started["pid"]}
    texts(await client.call_tool("sandbox_send_input", {**one, "input": "heard\n"}))
    # It comes with the first output, though the server goes on.
    output, told = texts(await client.call_tool("sandbox_read_output", {**one, "wait_seconds": 60}))
    told = json.loads(told)
    assert output == "HEARD\n" and told["state"] == "running" and told["next_offset"] == 6, (output, told)
    listed = await data(client, "sandbox_processes", sandbox_id=sandbox)
    assert listed["data"][0]["pid"] == started["pid"] and listed["data"][0]["state"] == "running", listed
    texts(await client.call_tool("sandbox_send_input", {**one, "input": "last\n", "end": True}))
    while told.get("state") == "running":
        asked = {**one, "offset": told["next_offset"], "wait_seconds": 10}
        output, told = texts(await client.call_tool("sandbox_read_output", asked))
        told = json.loads(told)
    assert told["exit_code"] == 0, told
    started = await data(client, "sandbox_run_command", sandbox_id=sandbox, command="sleep 4712", background=True)
    texts(await client.call_tool("sandbox_signal", {"sandbox_id": sandbox, "pid": started["pid"]}))
    asked = {"sandbox_id": sandbox, "pid": started["pid"], "wait_seconds": 30}
    assert json.loads(texts(await client.call_tool("sandbox_read_output", asked))[1])["signal"] == "SIGTERM"


async def goes_on_where_nobody_waits(client, sandbox):
    output, told = await command(client, sandbox, "echo first; sleep 2; echo second", wait_seconds=1)
    assert output == "first\n" and told["state"] == "running", (output, told)
    asked = {"sandbox_id": sandbox, "pid": told["pid"], "offset": told["next_offset"], "wait_seconds": 60}
    output, told = texts(await client.call_tool("sandbox_read_output", asked))
    assert output == "second\n", (output, told)


async def keeps_files(client, sandbox):
    path = "/home/user/a folder/ä.txt"
    written = await data(client, "sandbox_write_file", sandbox_id=sandbox, path=path, content="grün\n", mode="0600")
    assert written == {"path": path, "size": 6, "mode": "0600"}, written
    one = {"sandbox_id": sandbox, "path": path}
    text, note = texts(await client.call_tool("sandbox_read_file", one))
    assert text == "grün\n" and json.loads(note) == {"size": 6}, (text, note)
    text, note = texts(await client.call_tool("sandbox_read_file", {**one, "offset": 1, "limit": 4}))
    assert text == "rün" and json.loads(note)["next_offset"] == 5, (text, note)
    raw = {"sandbox_id": sandbox, "path": "raw", "content": base64.b64encode(b"\xff\0").decode(), "base64": True}
    await data(client, "sandbox_write_file", **raw)
    raw = {"sandbox_id": sandbox, "path": "raw"}
    text, note = texts(await client.call_tool("sandbox_read_file", raw))
    assert "no text" in text and json.loads(note) == {"size": 2}, (text, note)
    text, note = texts(await client.call_tool("sandbox_read_file", {**raw, "base64": True}))
    assert base64.b64decode(text) == b"\xff\0" and json.loads(note)["encoding"] == "base64", (text, note)
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    raw = {"path": "/tmp/p.png", "content": base64.b64encode(pixel).decode(), "base64": True}
    await data(client, "sandbox_write_file", sandbox_id=sandbox, **raw)
    picture = await client.call_tool("sandbox_read_file", {"sandbox_id": sandbox, "path": "/tmp/p.png"})
    assert picture.content[1].type == "image" and base64.b64decode(picture.content[1].data) == pixel, picture
    (lines,) = texts(await client.call_tool("sandbox_list_files", {"sandbox_id": sandbox, "depth": 2}))
    assert lines.startswith("/home/user/:\n") and " a folder/ä.txt\n" in lines and "-0600" in lines, lines
    edited = await data(client, "sandbox_edit_file", **one, old_text="grün", new_text="blau")
    assert edited == {"path": path, "size": 5, "replaced": 1}, edited
    output, _ = await command(client, sandbox, f"cat '{path}'; stat -c %a '{path}'")
    assert output == "blau\n600\n", output
    await data(client, "sandbox_edit_file", **one, old_text="blau", new_text="grün")
    await command(client, sandbox, f"ln -s '{path}' link && chmod 600 '{path}'")
    linked = {"sandbox_id": sandbox, "path": "link", "old_text": "grün", "new_text": "grün"}
    await data(client, "sandbox_edit_file", **linked)
    output, _ = await command(client, sandbox, f"cat '{path}'; stat -Lc %a link")
    assert output == "grün\n600\n", output
    each = [{**one, "old_text": "grün", "new_text": f"grün {number}"} for number in range(4)]
    await asyncio.gather(*(data(client, "sandbox_edit_file", **edit) for edit in each))
    (text, _) = texts(await client.call_tool("sandbox_read_file", one))
    assert sorted(text.split()) == ["0", "1", "2", "3", "grün"], text
    await data(client, "sandbox_write_file", **one, content="grün\n")
    info = {"sandbox_id": sandbox, "path": "/proc/version"}
    assert texts(await client.call_tool("sandbox_read_file", info))[0].startswith("Linux"), info
    twice = await client.call_tool("sandbox_edit_file", {**one, "old_text": "red", "new_text": ""})
    assert twice.is_error and "does not stand" in twice.content[0].text, twice
    root = {"sandbox_id": sandbox, "path": "/etc/shadow", "user": "root"}
    assert texts(await client.call_tool("sandbox_read_file", root))[0].startswith("root:")
    resource = await client.read_resource(f"berth://sandboxes/{sandbox}/files/home/user/a%20folder/%C3%A4.txt")
    assert resource.contents[0].text == "grün\n", resource
    resource = await client.read_resource(f"berth://sandboxes/{sandbox}/files/home/user")
    assert "a folder" in resource.contents[0].text, resource
    missing = await client.call_tool("sandbox_read_file", {"sandbox_id": sandbox, "path": "/nothing"})
    assert missing.is_error and "not_found" in missing.content[0].text, missing


async def tells_how_far_it_is(client, sandbox):
    heard = []

    async def progress(count, total, message):
        heard.append((count, message))

    line = "for i in 1 2 3; do echo step $i; sleep 0.5; done"
    asked = {"sandbox_id": sandbox, "command": line}
    await client.call_tool("sandbox_run_command", asked, progress_callback=progress)
    assert any("step" in message for _, message in heard), heard
    assert [count for count, _ in heard] == sorted({count for count, _ in heard}), heard


async def is_given_up(client, sandbox):
    """A call that nobody waits for any more ends its command."""

    async def started():
        listed = await data(client, "sandbox_processes", sandbox_id=sandbox)
        return next((process for process in listed["data"] if "4711" in process["command"]), None)

    call = asyncio.create_task(command(client, sandbox, "sleep 4711"))
    while not await started():
        await asyncio.sleep(0.1)
    call.cancel()
    for _ in range(100):
        if exit := (await started())["exit"]:
            break
        await asyncio.sleep(0.1)
    assert exit and exit["signal"] == "SIGKILL", exit


async def is_kept_and_copied(client, sandbox):
    await command(client, sandbox, "echo before > kept")
    kept = await data(client, "sandbox_snapshot", sandbox_id=sandbox, name="point")
    await command(client, sandbox, "echo after > kept")
    running = await data(client, "sandbox_run_command", sandbox_id=sandbox, command="sleep 4713", background=True)
    forks = await data(client, "sandbox_fork", sandbox_id=sandbox, count=2)
    for fork in forks["data"]:
        output, _ = await command(client, fork["id"], f"cat kept; test -d /proc/{running['pid']} && echo runs")
        assert output == "after\nruns\n", output
        texts(await client.call_tool("sandbox_delete", {"sandbox_id": fork["id"]}))
    await data(client, "sandbox_restore", sandbox_id=sandbox, snapshot_id=kept["id"])
    output, _ = await command(client, sandbox, "cat kept")
    assert output == "before\n", output
    assert (await data(client, "sandbox_pause", sandbox_id=sandbox))["phase"] == "Paused"
    # It resumes by itself.
    output, _ = await command(client, sandbox, "cat kept")
    assert output == "before\n", output
    texts(await client.call_tool("sandbox_delete_snapshot", {"snapshot_id": kept["id"]}))


async def serves_a_port(client, sandbox, http):
    server = "python3 -m http.server 8000"
    await data(client, "sandbox_run_command", sandbox_id=sandbox, command=server, background=True)
    reached = await data(client, "sandbox_port_url", sandbox_id=sandbox, port=8000)
    assert reached["header"].startswith("Authorization: Bearer"), reached
    for _ in range(100):
        answer = await http.get(reached["url"])
        if answer.status_code == 200:
            break
        await asyncio.sleep(0.1)
    assert answer.status_code == 200 and "kept" in answer.text, answer


async def over_http():
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
        async with Client(streamable_http_client(f"{BASE}/mcp", http_client=http)) as client:
            tools = (await client.list_tools()).tools
            assert {"sandbox_create", "sandbox_edit_file"} <= {tool.name for tool in tools}, tools
            sandbox = (await data(client, "sandbox_create", name="agent"))["id"]
            for part in [runs, is_told_in_parts, goes_on_in_the_background,
                         goes_on_where_nobody_waits, keeps_files, tells_how_far_it_is, is_given_up]:
                await part(client, sandbox)
                print(part.__name__, flush=True)
            await is_kept_and_copied(client, sandbox)
            await serves_a_port(client, sandbox, http)
            texts(await client.call_tool("sandbox_delete", {"sandbox_id": sandbox}))
            print("over HTTP", flush=True)


async def by_a_program():
    env = {"BERTH_URL": BASE, "BERTH_API_KEY": KEY, "HOME": os.environ["HOME"]}
    async with Client(StdioServerParameters(command=BERTH, args=["mcp"], env=env)) as client:
        assert len((await client.list_tools()).tools) > 20
        sandbox = (await data(client, "sandbox_create"))["id"]
        both = await asyncio.gather(*(command(client, sandbox, f"sleep 0.2; echo {word}") for word in "ab"))
        assert [output for output, _ in both] == ["a\n", "b\n"], both
        await tells_how_far_it_is(client, sandbox)
        await is_given_up(client, sandbox)
        wrong = await client.call_tool("sandbox_show", {"sandbox_id": "nothing"})
        assert wrong.is_error, wrong
        texts(await client.call_tool("sandbox_delete", {"sandbox_id": sandbox}))
        print("by a program", flush=True)


async def main():
    await over_http()
    await by_a_program()


asyncio.run(main())
sys.exit(0)
