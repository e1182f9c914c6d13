// The AI SDK's MCP client (@ai-sdk/mcp), unmodified, with a webhook receiver of
// its own. Usage: ai-sdk.js URL KEY discover|initialize

import { createServer } from "node:http";
import { createMCPClient, experimental_createMCPEventWebhook as createMCPEventWebhook } from "@ai-sdk/mcp";
import { serve, tell } from "./lines.js";

const [url, key, handshake] = process.argv.slice(2);

// A store as the client asks for one: by its own key and by the server's id.
const kept = new Map();
const store = {
  get: async (k) => kept.get(k),
  getById: async (id) => [...kept.values()].find((s) => s.id === id),
  set: async (s) => kept.set(s.key, s),
  update: async (k, patch) => kept.has(k) && kept.set(k, { ...kept.get(k), ...patch }),
  delete: async (k) => kept.delete(k),
};

const webhook = createMCPEventWebhook({
  store,
  onEvent: async ({ subscription, event }) => tell("event", { subscription: subscription.id, event }),
  onGap: async ({ gap }) => tell("gap", { gap }),
  onTerminated: async ({ termination }) => tell("terminated", { termination }),
  onError: (error) => tell("webhook error", { error: String(error) }),
});

const receiver = createServer(async (req, res) => {
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  const response = await webhook(
    new Request(new URL(req.url, "http://127.0.0.1"), { method: req.method, headers: req.headers, body: Buffer.concat(chunks) }),
  );
  tell("request", { status: response.status, id: req.headers["webhook-id"], signatures: (req.headers["webhook-signature"] ?? "").split(" ").length });
  res.writeHead(response.status, Object.fromEntries(response.headers));
  res.end(Buffer.from(await response.arrayBuffer()));
});
await new Promise((resolve) => receiver.listen(0, "127.0.0.1", resolve));
const callback = `http://127.0.0.1:${receiver.address().port}/hook`;

const client = await createMCPClient({
  transport: { type: "http", url, headers: { Authorization: `Bearer ${key}` } },
  protocolVersionDiscovery: handshake === "discover",
  experimental_events: { store },
  // A GET before initialize is refused, as the protocol asks; the client goes on.
  onUncaughtError: (error) => tell("client error", { problem: String(error) }),
});
tell("connected", { version: client.initializeResult.protocolVersion });

await serve({
  list: async () => (await client.experimental_events.list()).events.map(({ name, delivery }) => ({ name, delivery })),
  subscribe: async ({ name, args, secret, ttlMs }) =>
    client.experimental_events.subscribe({
      name,
      arguments: args,
      ttlMs,
      delivery: { mode: "webhook", url: callback, allowInsecureLocalhost: true, secret },
    }),
  refresh: async ({ id }) => client.experimental_events.refresh({ id }),
  unsubscribe: async ({ id }) => client.experimental_events.unsubscribe({ id }),
  resources: async () => (await client.listResources()).resources.map((r) => r.uri),
});
await client.close();
receiver.closeAllConnections();
receiver.close();
