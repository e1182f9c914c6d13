"""A backend for the gateway's soak, on the official Python SDK, of revision 2026-07-28.

Usage: backend.py HOST PORT DIR. The file NAME in DIR has the version of the resource soak://py/NAME, and the file list
that of the list of tools. A line of standard input, {"updated": URI} or {"listed": true}, has the backend announce a
change. It writes what happens to a call as a line: {"called"|"done"|"cancelled"|"answered": MARK}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged

HOST, PORT, DIR = sys.argv[1:4]
NAMES = ["r0", "r1", "r2", "r3", "r4", "slow", "refused"]
QUESTION = {"type": "object", "properties": {"value": {"type": "string"}}}

bus = InMemorySubscriptionBus()
listens = ListenHandler(bus)


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def version(uri: str) -> str:
    return Path(DIR, uri.rsplit("/", 1)[-1]).read_text()


async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
    names = ["work", "ask", "version_" + version("list")]
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names])


async def call_tool(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
    mark = (params.arguments or {})["mark"]
    text = mark
    if params.name == "ask":
        answer = (params.input_responses or {}).get("q")
        if answer is None:
            say(called=mark)
            question = types.ElicitRequest(params=types.ElicitRequestFormParams(message=mark, requested_schema=QUESTION))
            return types.InputRequiredResult(input_requests={"q": question}, request_state=mark)
        content = answer.content or {}
        if content:
            say(answered=mark, value=content["value"])
        text = f"{answer.action} {content.get('value')}"
    else:
        say(called=mark)
        try:
            await anyio.sleep((params.arguments or {})["ms"] / 1000)
        except anyio.get_cancelled_exc_class():
            say(cancelled=mark)
            raise
    say(done=mark)
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def list_resources(_ctx: Any, _params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(name=name, uri="soak://py/" + name) for name in NAMES])


async def read_resource(_ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri = str(params.uri)
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=version(uri))])


async def listen(ctx: Any, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
    """Honor all URIs but the refused one, after a while if the slow one is among them."""
    wanted = params.notifications.resource_subscriptions or []
    if any(uri.endswith("/slow") for uri in wanted):
        await anyio.sleep(3)
    params.notifications.resource_subscriptions = [uri for uri in wanted if not uri.endswith("/refused")]
    return await listens(ctx, params)


server = Server(
    "soak", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
    on_read_resource=read_resource, on_subscriptions_listen=listen,
)


async def announce() -> None:
    async for line in anyio.wrap_file(sys.stdin):
        uri = json.loads(line).get("updated")
        await bus.publish(ResourceUpdated(uri=uri) if uri else ToolsListChanged())


class Serving(uvicorn.Server):
    async def startup(self, *args: Any, **more: Any) -> None:
        await super().startup(*args, **more)
        say(serving=True)


async def main() -> None:
    config = uvicorn.Config(server.streamable_http_app(), host=HOST, port=int(PORT), log_level="critical", timeout_graceful_shutdown=1)
    async with anyio.create_task_group() as group:
        group.start_soon(Serving(config).serve)
        await announce()
        group.cancel_scope.cancel()  # the input has ended, and with it the test


anyio.run(main)
