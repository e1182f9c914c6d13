// Dead letters: people select and retry some, or replay all that match the filters, after a dry run.
import { html, mono, nothing, id, path, badge, table, time, pager, filters, since, until, ask, act, toast, cause, plural, number } from './ui.js';
import { get, post, call, query, moment, isOwner } from './session.js';

const selected = new Set();
let counting = false;

const choice = (q) => Object.fromEntries([...q].filter(([k, v]) => v && k !== 'cursor' && k !== 'replay')
  .map(([k, v]) => [k, k === 'since' || k === 'until' ? moment(v, k === 'until') : v])); // a replay needs exact times

// retry retries the selected dead letters. Those that the server refuses, for example because their subscription has ended, stay selected.
async function retry(items) {
  const chosen = items.filter((l) => selected.has(l.id)), refused = [];
  await act(`${plural(chosen.length, 'dead letter')} ${chosen.length === 1 ? 'is' : 'are'} delivered again.`, async () => {
    for (const l of chosen) {
      try {
        await post(`dead-letters/${l.id}/retry`);
        selected.delete(l.id);
      } catch (e) {
        if (e.status !== 404 && e.status !== 409) throw e;
        refused.push(e);
      }
    }
    if (refused.length) throw new Error(`${refused.length} of ${plural(chosen.length, 'dead letter')} cannot be delivered again: ${refused[0].message}.`);
  });
}

async function replay(q) {
  if (counting) return;
  counting = true;
  try {
    const select = choice(q), dry = await post('replays', { select, dryRun: true });
    const names = Object.entries(select).map(([k, v]) => `${k} ${v}`).join(', ');
    const said = await ask({
      title: `Replay ${number(dry.count)}${dry.more ? ' or more' : ''} dead ${dry.count === 1 ? 'letter' : 'letters'}?`,
      text: `${names ? `All dead letters with ${names}` : 'All dead letters'}. Each is sent with the same webhook-id, so that receivers can recognize repeats.`,
      fields: [{ name: 'rate', label: 'Deliveries per second', type: 'number', value: 20, min: 1, max: 1000, required: true }], confirm: 'Replay',
    });
    if (!said) return;
    const job = await post('replays', { select, rate: Number(said.rate) });
    location.hash = '#/dead-letters' + query({ ...select, replay: job.id });
  } catch (e) {
    toast(e.message, true);
  } finally {
    counting = false;
  }
}

const because = {
  suspended: 'the subscription is suspended until its subscriber refreshes it',
  ended: 'the subscription has ended',
  expired: 'the event is no longer stored',
  underway: 'it is already being delivered',
  return: 'the message cannot go back to its queue',
};

const skipped = (job) => Object.entries(job.skippedBecause ?? {}).map(([why, n]) => `, ${number(n)} skipped: ${because[why] ?? why}`).join('');

function progress(job) {
  const n = job.replayed + job.skipped;
  return html`<section class="job" aria-label="Replay"><div><b>Replay</b> ${badge(job.state)} <span class="muted">started ${time(job.created)} by ${job.by}, ${plural(job.rate, 'delivery', 'deliveries')} per second</span></div>
    <progress max=${job.total || 1} .value=${job.state === 'done' ? job.total || 1 : n} aria-label="Progress"></progress>
    <div><b>${number(job.replayed)}</b> of ${number(job.total)} replayed${skipped(job)}
    ${job.state === 'running' ? html`<button class="small" @click=${() => act('The replay is canceled.', () => call('DELETE', 'replays/' + job.id))}>Cancel</button>` : nothing}</div></section>`;
}

export const letters = {
  title: 'Dead letters', every: (data) => (data.job?.state === 'running' ? 3000 : 10_000), filtered: true,
  load: async (_, q) => {
    const [list, job] = await Promise.all([
      get('dead-letters' + query({ ...choice(q), cursor: q.get('cursor') })),
      q.get('replay') ? get('replays/' + encodeURIComponent(q.get('replay'))).catch((e) => { if (e.status === 404) return null; throw e; }) : null, // the server keeps replays for some days
    ]);
    for (const l of selected) if (!list.items.some((i) => i.id === l)) selected.delete(l);
    return { ...list, job };
  },
  view(data, _, q) {
    const redraw = () => dispatchEvent(new Event('reload'));
    const set = (ids, on) => { for (const l of ids) on ? selected.add(l) : selected.delete(l); redraw(); };
    const all = data.items.length > 0 && data.items.every((l) => selected.has(l.id));
    return html`<h1>Dead letters</h1>
      ${filters([{ name: 'subscription', label: 'Subscription' }, { name: 'origin', label: 'Origin', hint: 'https://host' }, { name: 'event', label: 'Event type', suggest: 'types' },
        { name: 'queue', label: 'Queue', options: ['', 'webhooks', 'inbox', 'events', 'deliveries', 'slow'] },
        since, until], q)}
      ${data.job ? progress(data.job) : nothing}
      <div class="actions"><button ?disabled=${!selected.size} @click=${() => retry(data.items)}>Retry selected (${selected.size})</button>
        ${isOwner() ? nothing : html`<button class="primary" ?disabled=${!data.items.length && !data.next} @click=${() => replay(q)}>Replay all of these …</button>`}</div>
      ${table('Dead letters', [
        { name: html`<input type="checkbox" aria-label="Select all on this page" .checked=${all} @change=${(e) => set(data.items.map((l) => l.id), e.target.checked)}>`, title: 'Select', kind: 'pick',
          cell: (l) => html`<input type="checkbox" aria-label=${`Select ${l.event ?? l.id}`} .checked=${selected.has(l.id)} @change=${(e) => set([l.id], e.target.checked)}>` },
        { name: 'Given up', cell: (l) => time(l.dead) }, { name: 'Event', cell: (l) => (l.subscription ? id(path('deliveries', l.subscription, l.event), l.event) : html`<span class="muted">message in the queue ${l.queue}</span>`) },
        { name: 'Type', cell: (l) => html`${l.name}${l.test ? badge('test') : nothing}` }, { name: 'Endpoint', cell: (l) => mono(l.target || l.origin) },
        { name: 'Owner', cell: (l) => l.principal }, { name: 'Attempts', kind: 'num', cell: (l) => l.attempts.length }, { name: 'Why', cell: (l) => cause(l.reason, l.statusCode) },
      ], data.items, 'No dead letters.')}
      ${pager(data.next, q)}`;
  },
};
