// What all scripts share: lines of JSON, commands {"do", ...} on standard input, what
// happened {"step", ...} on standard output.

import { createInterface } from "node:readline";

export const tell = (step, more = {}) => process.stdout.write(JSON.stringify({ step, ...more }) + "\n");

// serve carries commands out, one after the other, until the input ends.
export async function serve(commands) {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      tell(command.do, { result: (await commands[command.do](command)) ?? null });
    } catch (error) {
      tell(command.do, { error: String(error?.stack ?? error), code: error?.code });
    }
  }
}
