"""An agent of LangChain that works in a sandbox by the Model Context Protocol. Its model is a script: what it answers
depends on what the tools said."""

import asyncio
import json
import os

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_mcp_adapters.client import MultiServerMCPClient

BASE, KEY = os.environ["BERTH_URL"], os.environ["BERTH_API_KEY"]


def said(message):
    """The texts of a tool's result."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    return [block if isinstance(block, str) else block["text"] for block in blocks]


class Scripted(BaseChatModel):
    """A model that creates a sandbox, runs code in it, deletes it and tells the result."""

    names: list[str] = []

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        return Scripted(names=[tool.name for tool in tools])

    def _generate(self, messages, stop=None, run_manager=None, **_):
        return ChatResult(generations=[ChatGeneration(message=self.next(messages))])

    def next(self, messages):
        results = [message for message in messages if isinstance(message, ToolMessage)]
        calls = ["sandbox_create", "sandbox_run_code", "sandbox_delete"]
        if len(results) == len(calls):
            return AIMessage(content=f"It is {said(results[1])[0].strip()}.")
        name = calls[len(results)]
        assert name in self.names, self.names
        arguments = {"name": "scripted"}
        if results:
            arguments = {"sandbox_id": json.loads(said(results[0])[0])["id"]}
        if name == "sandbox_run_code":
            arguments["code"] = "print(6 * 7)"
        return AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": f"call{len(results)}"}])


async def main():
    berth = {"transport": "streamable_http", "url": f"{BASE}/mcp", "headers": {"Authorization": f"Bearer {KEY}"}}
    tools = await MultiServerMCPClient({"berth": berth}).get_tools()
    agent = create_agent(Scripted(), tools)
    ended = await agent.ainvoke({"messages": [HumanMessage("What is six times seven?")]})
    assert ended["messages"][-1].content == "It is 42.", ended


asyncio.run(main())
