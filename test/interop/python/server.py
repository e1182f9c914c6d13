"""Servers of MCP Events that others made, on the official Python SDK, unmodified.

Usage: server.py webhook|poll HOST PORT STORE. What it reads from standard input, a line of JSON each, it publishes:
{"id", "data"}. It writes a line when it serves, and one for each event when it has been published.

webhook is the package mcp-webhook-events, which has webhooks alone. poll serves events/list and events/poll, of which
the methods are those of this test; all else is the SDK.
"""

import json
import sys
import threading
from typing import Any

import uvicorn
from mcp.server import MCPServer

MODE, HOST, PORT, STORE = sys.argv[1:5]
NAME = "ticket.updated"
INPUT = {"type": "object", "properties": {"ticket": {"type": "string"}}, "required": ["ticket"], "additionalProperties": False}
PAYLOAD = {"type": "object", "properties": {"ticket": {"type": "string"}}, "required": ["ticket"]}

mcp = MCPServer("tickets")


def say(what: dict[str, str]) -> None:
    print(json.dumps(what), flush=True)


def serve_webhooks() -> None:
    from mcp_webhook_events import EventDefinition, McpEvents, SafeHttp

    events = McpEvents(
        mcp, store=STORE, definitions=[EventDefinition(NAME, "A ticket was updated.", INPUT, PAYLOAD)],
        http=SafeHttp(allow_insecure_for_tests=True),
    )
    events.install()

    def publish() -> None:
        for line in sys.stdin:
            event = json.loads(line)
            events.publish(NAME, event["data"], event_id=event["id"])
            events.deliver_pending()
            say({"published": event["id"]})

    threading.Thread(target=publish, daemon=True).start()


def serve_polls() -> None:
    from mcp_types import RequestParams
    from pydantic import ConfigDict

    class AnyParams(RequestParams):
        model_config = ConfigDict(extra="allow")

    def log() -> list[dict[str, Any]]:
        with open(STORE, "a+", encoding="utf-8") as file:
            file.seek(0)
            return [json.loads(line) for line in file]

    async def list_events(_ctx: Any, _params: AnyParams) -> dict[str, Any]:
        return {"events": [{"name": NAME, "description": "", "delivery": ["poll"], "inputSchema": INPUT, "payloadSchema": PAYLOAD}]}

    async def poll(_ctx: Any, params: AnyParams) -> dict[str, Any]:
        asked, events = params.model_dump(), log()
        start = len(events) if asked.get("cursor") is None else int(asked["cursor"])
        page = events[start:start + 2]
        found = [e for e in page if e["data"]["ticket"] == asked["arguments"]["ticket"]]
        return {
            "events": [{"eventId": e["id"], "name": NAME, "timestamp": "2026-11-21T09:24:00Z", "data": e["data"]} for e in found],
            "cursor": str(start + len(page)), "hasMore": start + len(page) < len(events), "truncated": False, "nextPollMs": 100,
        }

    low = mcp._lowlevel_server
    low.add_request_handler("events/list", AnyParams, list_events)
    low.add_request_handler("events/poll", AnyParams, poll)

    def publish() -> None:
        for line in sys.stdin:
            with open(STORE, "a", encoding="utf-8") as file:
                file.write(line)
            say({"published": json.loads(line)["id"]})

    threading.Thread(target=publish, daemon=True).start()


class Server(uvicorn.Server):
    async def startup(self, *args: Any, **more: Any) -> None:
        await super().startup(*args, **more)
        say({"serving": f"http://{HOST}:{PORT}/mcp"})


{"webhook": serve_webhooks, "poll": serve_polls}[MODE]()
app = mcp.streamable_http_app()
Server(uvicorn.Config(app, host=HOST, port=int(PORT), log_level="warning")).run()
