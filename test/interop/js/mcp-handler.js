// A server of MCP Events on mcp-handler, unmodified. The endpoint, discovery, who is asked for, ids, lifetimes and
// the checks of what a client sends are the package's. It leaves to an application where subscriptions are kept and how
// webhooks are sent: that is here, signed with the package standardwebhooks.
//
// Usage: mcp-handler.js HOST PORT STORE. What it reads from standard input, a line of JSON each, it publishes: {"id", "data"}. It
// writes a line when it serves, and one for each event that every subscriber has answered or been given up for.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { randomUUID } from "node:crypto";
import { createMcpHandler, experimental_registerMcpEvents as registerMcpEvents, experimental_withMcpAuth as withMcpAuth } from "mcp-handler";
import { Webhook } from "standardwebhooks";
import { z } from "zod";

const [host, port, file] = process.argv.slice(2);
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

// By id: what was subscribed, with the secrets of now and before; the last operation that was begun.
const kept = new Map(existsSync(file) ? JSON.parse(readFileSync(file)) : []);
const begun = new Map();
const save = () => {
  writeFileSync(file + ".new", JSON.stringify([...kept]));
  renameSync(file + ".new", file);
};
const subscriptions = {
  prepare: async ({ id }) => {
    begun.set(id, randomUUID());
    return begun.get(id);
  },
  upsert: async (subscription, _context, operation) => {
    if (begun.get(subscription.id) !== operation) throw new Error("a later request has overtaken this one");
    const before = kept.get(subscription.id)?.secrets ?? [];
    const secrets = [...new Set([subscription.secret, ...before])].slice(0, 2);
    kept.set(subscription.id, { ...subscription, secret: undefined, secrets });
    save();
    return { cursor: null, truncated: false };
  },
  remove: async ({ id }) => {
    const there = begun.delete(id);
    const had = kept.delete(id);
    save();
    return had || there;
  },
};

// post sends one signed request, and returns the answer.
async function post(url, id, messageId, secrets, body) {
  const now = new Date();
  const signature = secrets.map((secret) => new Webhook(secret).sign(messageId, now, body)).join(" ");
  const headers = {
    "Content-Type": "application/json",
    "webhook-id": messageId,
    "webhook-timestamp": String(Math.floor(now / 1000)),
    "webhook-signature": signature,
    "X-MCP-Subscription-Id": id,
  };
  return fetch(url, { method: "POST", redirect: "manual", headers, body, signal: AbortSignal.timeout(5000) });
}

const delivery = {
  verifyEndpoint: async ({ id, url, secret }) => {
    const challenge = randomUUID();
    try {
      const response = await post(url, id, `msg_verification_${randomUUID()}`, [secret], JSON.stringify({ type: "verification", challenge }));
      if (!response.ok) return { verified: false, reason: response.status >= 500 ? "http_5xx" : "http_4xx" };
      return (await response.json()).challenge === challenge ? { verified: true } : { verified: false, reason: "challenge_failed" };
    } catch (error) {
      return { verified: false, reason: error.name === "TimeoutError" ? "timeout" : "connection_refused" };
    }
  },
};

async function deliver(subscription, event) {
  const { id, url, secrets } = subscription;
  for (let attempt = 0; attempt < 5; attempt++) {
    const response = await post(url, id, event.eventId, secrets, JSON.stringify(event)).catch(() => null);
    if (response?.ok || response?.status === 410 || response?.status === 413) return;
    await new Promise((resolve) => setTimeout(resolve, 100 << attempt));
  }
}

const name = "ticket.updated";
const events = [
  {
    name,
    description: "A ticket was updated.",
    inputSchema: z.strictObject({ ticket: z.string() }),
    payloadSchema: z.object({ ticket: z.string() }),
    authorize: ({ ticket }) => ticket !== "secret",
  },
];
const handler = withMcpAuth(
  createMcpHandler(
    (server) => registerMcpEvents(server, { events, subscriptions, delivery, getPrincipal: ({ extra }) => extra.user }),
    { serverInfo: { name: "tickets", version: "1" } },
  ),
  async (_request, token) => (token === "agent" ? { token, clientId: "test", scopes: [], extra: { user: token } } : undefined),
  { required: true },
);

const server = createServer(async (req, res) => {
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  const response = await handler(
    new Request(`http://${host}:${port}${req.url}`, {
      method: req.method,
      headers: req.headers,
      body: chunks.length > 0 ? Buffer.concat(chunks) : undefined,
    }),
  );
  res.writeHead(response.status, Object.fromEntries(response.headers));
  for await (const chunk of response.body ?? []) res.write(chunk);
  res.end();
});
await new Promise((resolve) => server.listen(Number(port), host, resolve));
say({ serving: `http://${host}:${port}/mcp` });

for await (const line of createInterface({ input: process.stdin })) {
  const { id: eventId, data } = JSON.parse(line);
  const event = { eventId, name, timestamp: new Date().toISOString(), data, cursor: null };
  const matching = [...kept.values()].filter((s) => s.arguments.ticket === data.ticket && new Date(s.refreshBefore) > new Date());
  await Promise.all(matching.map((s) => deliver(s, event)));
  say({ published: eventId });
}
process.exit(0);
