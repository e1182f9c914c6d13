// The live stream of the admin API, and the figures of the last minutes.
import { open } from './session.js';

export const step = 10; // seconds
export const length = 900;
const kept = 300;

export const state = { connected: false, paused: false, truncated: false, deliveries: [], events: [] };
const steps = new Map(); // figures by the second in which their step begins
let stream = null;

// want opens the live stream if yes is true, and closes it otherwise.
export function want(yes) {
  if (!yes && stream) {
    stream.abort();
    stream = null;
    state.connected = false;
  } else if (yes && !stream) {
    stream = new AbortController();
    follow(stream.signal);
  }
}

async function follow(signal) {
  for (let wait = 1; !signal.aborted; wait = Math.min(wait * 2, 30)) {
    try {
      const reader = (await open('GET', 'live', null, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
      state.connected = true;
      redraw();
      wait = 1;
      let text = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const frames = (text + value).split('\n\n');
        text = frames.pop();
        for (const frame of frames) {
          const data = frame.split('\n').filter((l) => l.startsWith('data: ')).map((l) => l.slice(6)).join('\n');
          if (data) take(JSON.parse(data));
        }
      }
    } catch (e) {
      if (signal.aborted || e.status === 401 || e.status === 403) return;
    }
    if (signal.aborted) return;
    state.connected = false;
    redraw();
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
  }
}

const redraw = () => dispatchEvent(new Event('redraw'));
const begin = (t) => Math.floor(new Date(t) / 1000 / step) * step;

function take(tick) {
  const at = begin(tick.at), s = steps.get(at) || { attempts: 0, failed: 0, p50Ms: 0, p95Ms: 0 }, n = s.attempts + tick.attempts;
  if (n > s.attempts) {
    s.p50Ms = (s.p50Ms * s.attempts + tick.p50Ms * tick.attempts) / n;
    s.p95Ms = Math.max(s.p95Ms, tick.p95Ms);
  }
  s.attempts = n;
  s.failed += tick.failed;
  s.live = true;
  steps.set(at, s);
  state.truncated = tick.truncated;
  if (!state.paused) {
    state.deliveries = [...tick.deliveries, ...state.deliveries].slice(0, kept);
    state.events = [...tick.events, ...state.events].slice(0, kept);
  }
  redraw();
}

// remember stores the steps of an overview for the times for which the stream has sent none.
export function remember(overview) {
  for (const s of overview.recent.series) {
    const at = begin(s.at);
    if (!steps.get(at)?.live) steps.set(at, { ...s });
  }
  for (const at of steps.keys()) if (at < Date.now() / 1000 - length - 2 * step) steps.delete(at);
}

// series returns the last minutes for the charts: times, attempts per second, failures per second, and latencies.
export function series() {
  const end = begin(Date.now()) - step, out = [[], [], [], [], []];
  for (let t = end - length; t <= end; t += step) {
    const s = steps.get(t);
    out[0].push(t);
    out[1].push(s ? s.attempts / step : 0);
    out[2].push(s ? s.failed / step : 0);
    out[3].push(s?.attempts ? s.p50Ms : null);
    out[4].push(s?.attempts ? s.p95Ms : null);
  }
  return out;
}
