"""Cells by the Model Context Protocol, in a real sandbox of the template code-interpreter."""

import asyncio
import base64
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

BASE, KEY = os.environ["BERTH_URL"], os.environ["BERTH_API_KEY"]


async def main():
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as http:
        async with Client(streamable_http_client(f"{BASE}/mcp", http_client=http)) as client:
            made = await client.call_tool("sandbox_create", {"template": "code-interpreter"})
            one = {"sandbox_id": made.structured_content["id"]}

            async def cell(code, **more):
                answer = await client.call_tool("sandbox_run_cell", {**one, "code": code, **more})
                assert not answer.is_error, answer
                return answer.content

            async def texts(code, **more):
                return [block.text for block in await cell(code, **more)]

            assert await texts("x = 20") == ["(no output)"]
            assert await texts("print('out')\nx + 1") == ["out\n", "21"]
            (failed,) = await texts("1 / 0")
            assert "ZeroDivisionError" in failed and "\x1b" not in failed, failed
            picture = (await cell("import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.show()"))[-1]
            assert picture.type == "image" and base64.b64decode(picture.data).startswith(b"\x89PNG"), picture
            late = await texts("import time\ntime.sleep(600)", wait_seconds=2)
            assert "interrupted after 2 s" in late[-1], late
            assert await texts("x") == ["20"]
            assert "NameError" in (await texts("x", restart=True))[0]
            assert await texts("let y = 6; y * 7", language="javascript") == ["42"]
            await client.call_tool("sandbox_delete", one)
            plain = (await client.call_tool("sandbox_create", {})).structured_content["id"]
            none = await client.call_tool("sandbox_run_cell", {"sandbox_id": plain, "code": "1"})
            assert none.is_error and "code-interpreter" in none.content[0].text, none
            await client.call_tool("sandbox_delete", {"sandbox_id": plain})


asyncio.run(main())
