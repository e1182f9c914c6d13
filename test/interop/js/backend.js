// A backend for the gateway's soak, on the official TypeScript SDK, with sessions. The argument "stray" has a tool ask on the GET stream of the
// session instead of the call's response stream.
//
// Usage: backend.js HOST PORT DIR. The file NAME in DIR has the version of the resource soak://ts/NAME, and the file list
// that of the list of tools. A line of standard input, {"updated": URI} or {"listed": true}, has the backend announce a
// change. It writes what happens to a call as a line: {"called"|"done"|"cancelled"|"answered"|"withdrawn": MARK}.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import {
  CallToolRequestSchema, ElicitResultSchema, ListResourcesRequestSchema, ListToolsRequestSchema, ReadResourceRequestSchema,
  SubscribeRequestSchema, UnsubscribeRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const [host, port, dir] = process.argv.slice(2);
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const version = (uri) => readFileSync(dir + "/" + uri.split("/").pop(), "utf8");
const names = ["r0", "r1", "r2", "r3", "r4", "slow", "refused"];
const inputSchema = { type: "object" };
const sessions = new Map(); // by id: the server, its transport, and the URIs that it is subscribed to

// sleep waits, and fails if the signal aborts before.
const sleep = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
});

async function call(server, { params: { name, arguments: { mark, ms, stray } } }, extra) {
  say({ called: mark });
  extra.signal.addEventListener("abort", () => say({ cancelled: mark }));
  let text = mark;
  if (name === "ask") {
    const request = { method: "elicitation/create", params: { message: mark, requestedSchema: { type: "object", properties: { value: { type: "string" } } } } };
    const ask = stray ? server.request.bind(server) : extra.sendRequest;
    const answer = await ask(request, ElicitResultSchema, { timeout: ms, signal: extra.signal }).catch((error) => {
      if (!extra.signal.aborted) say({ withdrawn: mark });
      return { action: String(error) };
    });
    if (answer.content) say({ answered: mark, value: answer.content.value });
    text = `${answer.action} ${answer.content?.value}`;
  } else {
    await sleep(ms, extra.signal);
  }
  say({ done: mark });
  return { content: [{ type: "text", text }] };
}

function newSession() {
  const uris = new Set();
  const server = new Server({ name: "soak", version: "1" }, { capabilities: { tools: { listChanged: true }, resources: { subscribe: true } } });
  server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: ["work", "ask", "version_" + version("list")].map((name) => ({ name, inputSchema })) }));
  server.setRequestHandler(CallToolRequestSchema, (request, extra) => call(server, request, extra));
  server.setRequestHandler(ListResourcesRequestSchema, () => ({ resources: names.map((name) => ({ name, uri: "soak://ts/" + name })) }));
  server.setRequestHandler(ReadResourceRequestSchema, ({ params: { uri } }) => ({ contents: [{ uri, text: version(uri) }] }));
  server.setRequestHandler(SubscribeRequestSchema, async ({ params: { uri } }) => {
    if (uri.endsWith("/slow")) await sleep(3000);
    uris.add(uri);
    return {};
  });
  server.setRequestHandler(UnsubscribeRequestSchema, ({ params: { uri } }) => { uris.delete(uri); return {}; });
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => sessions.set(id, { server, transport, uris }),
  });
  transport.onclose = () => sessions.delete(transport.sessionId);
  return server.connect(transport).then(() => transport);
}

const http = createServer(async (req, res) => {
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  const body = chunks.length > 0 ? JSON.parse(Buffer.concat(chunks)) : undefined;
  if (body?.method === "resources/subscribe" && body.params.uri.endsWith("/refused")) {
    res.writeHead(405).end();
    return;
  }
  let transport = sessions.get(req.headers["mcp-session-id"])?.transport;
  if (!transport && body?.method === "initialize") transport = await newSession();
  if (!transport) {
    const error = { code: -32001, message: "Session not found" };
    res.writeHead(req.headers["mcp-session-id"] ? 404 : 400, { "Content-Type": "application/json" }).end(JSON.stringify({ jsonrpc: "2.0", id: null, error }));
    return;
  }
  await transport.handleRequest(req, res, body);
});
await new Promise((resolve) => http.listen(Number(port), host, resolve));
say({ serving: true });

for await (const line of createInterface({ input: process.stdin })) {
  const { updated } = JSON.parse(line);
  for (const { server, uris } of sessions.values()) {
    if (!updated) server.sendToolListChanged().catch(() => {});
    else if (uris.has(updated)) server.sendResourceUpdated({ uri: updated }).catch(() => {});
  }
}
process.exit(0);
