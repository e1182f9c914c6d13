// The official TypeScript SDK's client, unmodified: its releases 2
// (@modelcontextprotocol/client) or 1 (@modelcontextprotocol/sdk).
// Usage: typescript.js URL KEY REVISION 2|1

import { z } from "zod";
import { serve, tell } from "./lines.js";

const [url, key, revision, release] = process.argv.slice(2);
const prefix = "io.github.mcp-events/";
const stateless = revision >= "2026";
const info = { name: "typescript", version: "1" };
// The client drops members of params that it does not know; who declares the extension gets them in _meta.
const capabilities = { extensions: { [prefix + "subscriptions"]: {} } };

let client, Transport, on;
if (release === "1") {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  Transport = (await import("@modelcontextprotocol/sdk/client/streamableHttp.js")).StreamableHTTPClientTransport;
  client = new Client(info, { capabilities });
  const schemas = { "notifications/resources/updated": types.ResourceUpdatedNotificationSchema };
  on = (method, handler) => client.setNotificationHandler(schemas[method], handler);
} else {
  const sdk = await import("@modelcontextprotocol/client");
  Transport = sdk.StreamableHTTPClientTransport;
  client = new sdk.Client(info, {
    capabilities,
    supportedProtocolVersions: [revision],
    versionNegotiation: { mode: stateless ? { pin: revision } : "legacy" },
  });
  on = (method, handler) => client.setNotificationHandler(method, handler);
}

const cursors = new Map(); // by URI: the last one that came, or that of the acknowledgment
on("notifications/resources/updated", ({ params }) => {
  cursors.set(params.uri, params._meta[prefix + "cursor"]);
  tell("updated", { uri: params.uri, meta: params._meta, payload: params._meta[prefix + "payload"] });
});
client.onerror = (error) => tell("problem", { problem: String(error) }); // a stream that is cut is one

const transport = new Transport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${key}` } } });
await client.connect(transport);
tell("connected");

// own sends a request that the client has no method of its own for. Its stream, if it
// has one, lives until it is aborted.
const own = (method, params, options) => client.request({ method, params }, z.looseObject({}), { timeout: 300_000, ...options });

const open = new Map(); // by URI or name: how to end a stream
async function listen(uri) {
  const subscription = await client.listen({ resourceSubscriptions: [uri] });
  open.set(uri, () => subscription.close());
  subscription.closed.then((cause) => tell("ended", { cause }));
  return subscription.honoredFilter.resourceSubscriptions;
}

// resume listens from a cursor, for which client.listen has no option.
const acknowledged = [];
function resume(uri) {
  const end = new AbortController();
  open.set(uri, () => end.abort());
  const params = { notifications: { resourceSubscriptions: [uri] }, _meta: { [prefix + "cursor"]: cursors.get(uri) } };
  own("subscriptions/listen", params, { signal: end.signal }).then(
    () => tell("ended", { cause: "graceful" }),
    (error) => tell("ended", { cause: end.signal.aborted ? "local" : String(error) }),
  );
  return new Promise((resolve) => acknowledged.push(resolve));
}

if (stateless) {
  on("notifications/subscriptions/acknowledged", ({ params }) => acknowledged.shift()(params.notifications.resourceSubscriptions));
  const events = {
    "notifications/events/active": "active",
    "notifications/events/event": "event",
    "notifications/events/heartbeat": "heartbeat",
  };
  for (const [method, step] of Object.entries(events)) {
    client.setNotificationHandler(method, { params: z.looseObject({}) }, (params) => tell(step, { params }));
  }
}

await serve({
  resources: async () => (await client.listResources()).resources.map((r) => r.uri),
  templates: async () => (await client.listResourceTemplates()).resourceTemplates.map((t) => t.uriTemplate),
  read: async ({ uri }) => JSON.parse((await client.readResource({ uri })).contents[0].text),
  subscribe: async ({ uri }) => (stateless ? listen(uri) : client.subscribeResource({ uri })),
  resume: async ({ uri }) => resume(uri),
  unsubscribe: async ({ uri }) => (stateless ? open.get(uri)() : client.unsubscribeResource({ uri })),
  events: async () => (await own("events/list", {})).events.map(({ name, delivery }) => ({ name, delivery })),
  poll: async ({ params }) => own("events/poll", params),
  stream: async ({ params }) => {
    const end = new AbortController();
    open.set(params.name, () => end.abort());
    own("events/stream", params, { signal: end.signal }).then(
      () => tell("stream ended", { cause: "graceful" }),
      (error) => tell("stream ended", { cause: end.signal.aborted ? "local" : String(error) }),
    );
  },
  cancel: async ({ name }) => open.get(name)(),
  close: async () => {
    if (!stateless) await transport.terminateSession();
    await client.close();
  },
});
