"""A client of the Model Context Protocol that has no key: the SDK registers, and a person agrees on the service's pages,
which are filled in here as a browser would."""

import asyncio
import os
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

SERVICE = os.environ["BASE_URL"].removesuffix("/v1")
PERSON = {"email": os.environ["EMAIL"], "password": os.environ["PASSWORD"]}
BACK = "http://127.0.0.1:4711/callback"


class Page(HTMLParser):
    """What a person can do on a page."""

    def __init__(self, answer):
        super().__init__()
        self.fields, self.action, self.leads_to, self.base = [], None, None, str(answer.url)
        self.feed(answer.text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "form":
            self.action = urljoin(self.base, found["action"])
        elif tag == "input" and (found.get("type") != "checkbox" or "checked" in found):
            self.fields.append((found["name"], found.get("value", "")))
        elif tag == "option" and not any(name == "project" for name, _ in self.fields):
            self.fields.append(("project", found["value"]))
        elif tag == "meta" and found.get("http-equiv") == "refresh":
            self.leads_to = found["content"].removeprefix("0;url=")

    def filled(self, **values):
        fields = [(name, values.pop(name, value)) for name, value in self.fields]
        return self.action, fields + list(values.items())


class Storage:
    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def main():
    storage, back = Storage(), []

    async def person(address):
        async with httpx2.AsyncClient() as browser:

            async def submit(action, fields):
                form = httpx2.QueryParams(fields)
                kind = {"Content-Type": "application/x-www-form-urlencoded"}
                answer = await browser.post(action, content=str(form), headers=kind)
                assert answer.status_code == 200, answer.text
                return Page(answer)

            page = Page(await browser.get(address))
            page = await submit(*page.filled(**PERSON))
            action, fields = page.filled(decision="allow")
            assert [value for name, value in fields if name == "scope"] == ["sandbox"], fields
            page = await submit(action, fields + [("scope", "vm"), ("scope", "inference")])
            assert page.leads_to.startswith(f"{BACK}?"), page.leads_to
            back.append(dict(parse_qsl(urlsplit(page.leads_to).query)))

    async def callback():
        return AuthorizationCodeResult(**{name: back[-1].get(name) for name in ("code", "state", "iss")})

    about = OAuthClientMetadata(client_name="SDK", redirect_uris=[BACK])
    auth = OAuthClientProvider(f"{SERVICE}/mcp", about, storage, person, callback)
    async with httpx2.AsyncClient(auth=auth, timeout=60) as http:
        async with Client(streamable_http_client(f"{SERVICE}/mcp", http_client=http)) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert {"sandbox_create", "vm_list", "model_list"} <= tools, tools
            models = (await client.call_tool("model_list", {})).structured_content["models"]
            assert "acme/echo" in models, models
    assert len(back) == 1 and storage.tokens.access_token.startswith("brt_"), (back, storage.tokens)


asyncio.run(main())
