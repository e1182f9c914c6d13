// Verifies the deliveries in the file given, each with every secret that its
// receiver might hold, and prints a list of lists of verdicts.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, file] = process.argv.slice(2);
const { Webhook } = createRequire(join(modules, "package.json"))("standardwebhooks");

const verdicts = JSON.parse(readFileSync(file, "utf8")).map(({ secrets, headers, body }) =>
  secrets.map((secret) => {
    const webhook = secret.startsWith("whsec_") ? new Webhook(secret) : new Webhook(secret, { format: "raw" });
    try {
      webhook.verify(Buffer.from(body, "base64"), headers);
      return true;
    } catch {
      return false;
    }
  }),
);
console.log(JSON.stringify(verdicts));
