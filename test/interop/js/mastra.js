// Mastra's MCP client (@mastra/mcp), unmodified. Usage: mastra.js URL KEY

import { MCPClient } from "@mastra/mcp";
import { serve, tell } from "./lines.js";

const [url, key] = process.argv.slice(2);
const prefix = "io.github.mcp-events/";
const client = new MCPClient({
  servers: {
    events: {
      url: new URL(url),
      connectTimeout: 60_000, // the default of 3 s is short for the first request to a function
      requestInit: { headers: { Authorization: `Bearer ${key}` } },
      capabilities: { extensions: { [prefix + "subscriptions"]: {} } },
    },
  },
});
await client.resources.onUpdated("events", ({ uri, _meta: meta }) =>
  tell("updated", { uri, meta, payload: meta[prefix + "payload"] }),
);
tell("connected");

await serve({
  resources: async () => (await client.resources.list()).events.map((r) => r.uri),
  templates: async () => (await client.resources.templates()).events.map((t) => t.uriTemplate),
  read: async ({ uri }) => JSON.parse((await client.resources.read("events", uri)).contents[0].text),
  subscribe: async ({ uri }) => client.resources.subscribe("events", uri),
  unsubscribe: async ({ uri }) => client.resources.unsubscribe("events", uri),
  close: async () => client.disconnect(),
});
