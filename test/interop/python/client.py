"""The official Python SDK's client (mcp), unmodified.

Lines of JSON: commands {"do", ...} on standard input, what happened {"step", ...} on
standard output. Usage: client.py URL KEY REVISION
"""

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp import MCPDeprecationWarning
from mcp.client import Client, ClientExtension, advertise
from mcp.client.extension import NotificationBinding
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from pydantic import BaseModel, ConfigDict

PREFIX = "io.github.mcp-events/"
URL, KEY, REVISION = sys.argv[1:4]
MODERN = REVISION >= "2026"

warnings.simplefilter("ignore", MCPDeprecationWarning)  # of what 2026-07-28 no longer has


def tell(step: str, **more: Any) -> None:
    print(json.dumps({"step": step, **more}), flush=True)


class Anything(BaseModel):
    """Whatever an extension of the protocol sends."""

    model_config = ConfigDict(extra="allow")

    def tell(self, step: str) -> None:
        tell(step, params=self.model_dump(mode="json"))


class Events(ClientExtension):
    """Observes the notifications of events/stream."""

    identifier = "io.modelcontextprotocol/events"

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        def binding(step: str) -> NotificationBinding[Any]:
            async def handler(params: Anything) -> None:
                params.tell(step)

            return NotificationBinding(method=f"notifications/events/{step}", params_type=Anything, handler=handler)

        return [binding(step) for step in ("active", "event", "heartbeat")]


class Driver:
    def __init__(self, client: Client, tasks: anyio.abc.TaskGroup) -> None:
        self.client, self.tasks = client, tasks
        self.open: dict[str, anyio.CancelScope] = {}  # by URI or name: how to end a stream

    async def resources(self) -> list[str]:
        return [r.uri for r in (await self.client.list_resources()).resources]

    async def templates(self) -> list[str]:
        return [t.uri_template for t in (await self.client.list_resource_templates()).resource_templates]

    async def read(self, uri: str) -> Any:
        return json.loads((await self.client.read_resource(uri)).contents[0].text)

    async def subscribe(self, uri: str) -> Any:
        if not MODERN:
            return (await self.client.subscribe_resource(uri)).model_dump(mode="json")
        return await self.tasks.start(self.listen, uri)

    async def listen(self, uri: str, *, task_status: anyio.abc.TaskStatus[Any]) -> None:
        with anyio.CancelScope() as self.open[uri]:
            try:
                async with self.client.listen(resource_subscriptions=[uri]) as subscription:
                    task_status.started(subscription.honored.resource_subscriptions)
                    async for _ in subscription:  # the message handler has told it, with its _meta
                        pass
                tell("ended", cause="graceful")
            except SubscriptionLost:
                tell("ended", cause="remote")

    async def resume(self, uri: str) -> Any:
        """Listens from a cursor, for which Client.listen has no argument."""
        acknowledged.append(event := anyio.Event())
        params = {"notifications": {"resourceSubscriptions": [uri]}, "_meta": {PREFIX + "cursor": cursors[uri]}}
        self.tasks.start_soon(self.stays_open, uri, "subscriptions/listen", params, "ended")
        await event.wait()
        return [uri]

    async def stays_open(self, name: str, method: str, params: dict[str, Any], ended: str) -> None:
        with anyio.CancelScope() as self.open[name]:
            try:
                await self.own(method, params)
                tell(ended, cause="graceful")
            except Exception as error:
                tell(ended, cause=str(error))

    async def own(self, method: str, params: dict[str, Any]) -> Any:
        """Sends a request that the client has no method of its own for."""
        request = types.Request[dict[str, Any], str](method=method, params=params)
        return (await self.client.session.send_request(request, Anything)).model_dump(mode="json")

    async def unsubscribe(self, uri: str) -> None:
        if MODERN:
            self.open[uri].cancel()
        else:
            await self.client.unsubscribe_resource(uri)

    async def events(self) -> Any:
        return (await self.own("events/list", {}))["events"]

    async def poll(self, params: dict[str, Any]) -> Any:
        return await self.own("events/poll", params)

    async def stream(self, params: dict[str, Any]) -> None:
        self.tasks.start_soon(self.stays_open, params["name"], "events/stream", params, "stream ended")

    async def cancel(self, name: str) -> None:
        self.open[name].cancel()


cursors: dict[str, str] = {}
acknowledged: list[anyio.Event] = []


async def heard(message: Any) -> None:
    if isinstance(message, types.SubscriptionsAcknowledgedNotification):
        acknowledged.pop(0).set()
    if not isinstance(message, types.ResourceUpdatedNotification):
        return
    params = message.params.model_dump(mode="json", by_alias=True)
    meta = params["_meta"]
    cursors[params["uri"]] = meta[PREFIX + "cursor"]
    tell("updated", uri=params["uri"], meta=meta, payload=meta[PREFIX + "payload"])


async def main() -> None:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=httpx2.Timeout(30, read=300))
    transport = streamable_http_client(URL, http_client=http)
    mode = REVISION if MODERN else "legacy"
    extensions = [advertise(PREFIX + "subscriptions"), Events()]
    async with http, Client(transport, mode=mode, message_handler=heard, extensions=extensions) as client:
        tell("connected")
        async with anyio.create_task_group() as tasks:
            await serve(Driver(client, tasks))
            tasks.cancel_scope.cancel()
    tell("close", result=None)


async def serve(driver: Driver) -> None:
    """Carries commands out, one after the other, until the input ends."""
    async for line in anyio.wrap_file(sys.stdin):
        command = json.loads(line)
        do = command.pop("do")
        if do == "close":
            return
        try:
            tell(do, result=await getattr(driver, do)(**command))
        except Exception as error:
            tell(do, error=repr(error))


anyio.run(main)
