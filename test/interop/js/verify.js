// Verifies webhook deliveries by the Standard Webhooks library. Reads a JSON array
// of {secret, headers, body (base64)} and writes {verified, failures: [{index, error}]}.

import { Webhook } from "standardwebhooks";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const deliveries = JSON.parse(Buffer.concat(chunks).toString("utf8"));

const bySecret = new Map();
const failures = [];
let verified = 0;
deliveries.forEach(({ secret, headers, body }, index) => {
  if (!bySecret.has(secret)) bySecret.set(secret, new Webhook(secret));
  try {
    bySecret.get(secret).verify(Buffer.from(body, "base64"), headers);
    verified++;
  } catch (error) {
    failures.push({ index, error: String(error) });
  }
});
process.stdout.write(JSON.stringify({ verified, failures }));
