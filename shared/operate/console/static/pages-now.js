// The pages Now and Live tail.
import { html, mono, nothing, link, id, path, badge, table, time, span, number, plural, cause } from './ui.js';
import { readOverview, query } from './session.js';
import * as live from './live.js';

const share = (failed, attempts) => `${Math.round(100 * failed / Math.max(attempts, 1))} %`;
const atLeast = (n) => number(n) + (n >= 1000 ? '+' : '');

// wrong returns the current problems, the worst first.
function wrong(o) {
  const all = o.paused.find((s) => s.name === 'all'), list = [];
  const add = (tone, text, to, action) => list.push({ tone, text, to, action });
  if (all) add('bad', `All deliveries are paused by ${all.by}${all.reason ? `: ${all.reason}` : ''}.`, 'switches', 'Switches');
  for (const f of o.recent.failing.slice(0, 5)) {
    add(f.failed * 2 > f.attempts ? 'bad' : 'warn', html`<span class="id">${f.origin}</span> failed ${plural(f.failed, 'time')} in ${plural(f.attempts, 'attempt')} since ${time(f.since)}: ${cause(f.category, f.statusCode)}.
      It affects ${link('subscriptions?' + new URLSearchParams({ origin: f.origin }), plural(f.subscriptions, 'subscription'))}.`,
      path('failing', f.origin), 'Show');
  }
  if (o.recent.failing.length > 5) add('warn', `${number(o.recent.failing.length - 5)} more endpoints fail.`, 'failing', 'Failing');
  if (o.deadLetters) add('warn', `${atLeast(o.deadLetters)} dead ${o.deadLetters === 1 ? 'letter waits' : 'letters wait'} for a decision.`, 'dead-letters', 'Dead letters');
  for (const state of ['suspended', 'disabled']) {
    if (o.subscriptions[state]) add('warn', `${plural(o.subscriptions[state], 'subscription')} ${o.subscriptions[state] === 1 ? 'is' : 'are'} ${state}.`, `subscriptions?state=${state}`, 'Show');
  }
  const others = o.paused.filter((s) => s.name !== 'all');
  if (others.length) add('warn', `${plural(others.length, 'switch', 'switches')} ${others.length === 1 ? 'pauses' : 'pause'} deliveries: ${others.slice(0, 3).map((s) => s.name).join(', ')}${others.length > 3 ? ', …' : ''}.`, 'switches', 'Switches');
  return list;
}

function chart(title, unit, lines, data, least, last) {
  const now = last.map((v, i) => `${lines[i].label} ${v}`).join(', ');
  return html`<figure class="chart"><figcaption><b>${title}</b> <span class="muted">${unit}</span>
    <span class="legend">${lines.map((l, i) => html`<span class=${l.color}>${l.label} <b>${last[i]}</b></span>`)}</span></figcaption>
    <line-chart role="img" aria-label=${`${title}, ${unit}, last 15 minutes; now ${now}`} .lines=${lines} .least=${least} .data=${data}></line-chart></figure>`;
}

export const now = {
  title: 'Now', every: 10_000, live: true,
  load: async () => {
    const o = await readOverview();
    live.remember(o);
    return o;
  },
  view(o) {
    const list = wrong(o), s = live.series(), [t, attempts, failed, p50, p95] = s, end = t.length - 1;
    const rate = (v) => (v[end] < 10 ? v[end].toFixed(1) : number(Math.round(v[end])));
    const ms = (v) => (v[end] == null ? '–' : span(v[end]));
    const tile = (name, value, to, tone = '') => html`<a class="tile" href=${'#/' + to}><span class="muted">${name}</span><b class=${tone}>${value}</b></a>`;
    return html`<h1>Now <span class="state ${live.state.connected ? 'ok' : 'muted'}" aria-live="polite">${live.state.connected ? 'live' : 'every 10 s'}</span></h1>
      <section class="wrong" aria-label="What is wrong">${list.length
        ? html`<ul>${list.map((w) => html`<li class=${w.tone}><span>${w.text}</span>${link(w.to, w.action)}</li>`)}</ul>`
        : html`<p class="ok">Nothing is wrong: no failures in the last hour, no dead letters, nothing paused.</p>`}</section>
      <section class="tiles" aria-label="Counts">
        ${tile('Active subscriptions', atLeast(o.subscriptions.active || 0), 'subscriptions?state=active')}
        ${tile('Attempts, last hour', atLeast(o.recent.attempts), 'deliveries')}
        ${tile('Failed of these', o.recent.attempts ? `${number(o.recent.failed)} · ${share(o.recent.failed, o.recent.attempts)}` : '0', 'deliveries?outcome=failed', o.recent.failed ? 'warn' : '')}
        ${tile('Dead letters', atLeast(o.deadLetters), 'dead-letters', o.deadLetters ? 'bad' : '')}
      </section>
      <section class="charts" aria-label="Charts">
        ${chart('Attempts', 'per second', [{ label: 'all', color: 'accent', fill: true }, { label: 'failed', color: 'bad', fill: true }], [t, attempts, failed], 1, [rate(attempts), rate(failed)])}
        ${chart('Latency', 'ms', [{ label: 'p95', color: 'warn' }, { label: 'median', color: 'accent' }], [t, p95, p50], 10, [ms(p95), ms(p50)])}
        ${chart('Failures', '%', [{ label: 'failed', color: 'bad', fill: true }], [t, attempts.map((n, i) => (n ? 100 * failed[i] / n : 0))], 10, [share(failed[end], attempts[end])])}
      </section>
      ${o.delivery.kept === 'all' ? nothing : html`<p class="note">The delivery log keeps ${o.delivery.kept === 'none' ? 'no attempts' : 'failures only'} (--delivery-log), and so do these figures.</p>`}`;
  },
};

const columns = {
  deliveries: [
    { name: 'Time', cell: (d) => time(d.at) }, { name: 'Outcome', cell: (d) => badge(d.outcome) },
    { name: 'Event', cell: (d) => id(path('deliveries', d.subscription, d.event), d.event) }, { name: 'Type', cell: (d) => d.name },
    { name: 'Endpoint', cell: (d) => mono(d.target || d.origin) }, { name: 'Attempt', kind: 'num', cell: (d) => d.attempt },
    { name: 'Took', kind: 'num', cell: (d) => span(d.durationMs) }, { name: 'Why', kind: 'why', cell: (d) => cause(d.category, d.statusCode) },
  ],
  events: [
    { name: 'Published', cell: (e) => time(e.published) }, { name: 'Event', cell: (e) => id(path('events', e.id) + query({ uri: e.uri }), e.id) },
    { name: 'Type', cell: (e) => e.name }, { name: 'URI', cell: (e) => mono(e.uri) },
  ],
};

export const tail = {
  title: 'Live tail', live: true,
  load: async () => null,
  view(_, parts, q) {
    const tab = parts[0] === 'events' ? 'events' : 'deliveries', names = ['deliveries', 'events'];
    const turn = (e) => {
      if (e.key !== 'ArrowLeft' && e.key !== 'ArrowRight') return;
      const other = names[1 - names.indexOf(tab)];
      location.hash = '#/live/' + other;
      setTimeout(() => document.getElementById('tab-' + other)?.focus());
    };
    const filter = (q.get('for') || '').toLowerCase();
    const rows = live.state[tab].filter((r) => !filter || JSON.stringify(r).toLowerCase().includes(filter));
    const pause = () => { live.state.paused = !live.state.paused; dispatchEvent(new Event('redraw')); };
    const narrow = (e) => history.replaceState(null, '', `#/live/${tab}?` + new URLSearchParams({ for: e.target.value })) ?? dispatchEvent(new Event('hashchange'));
    return html`<h1>Live tail <span class="state ${live.state.connected ? 'ok' : 'muted'}" aria-live="polite">${live.state.paused ? 'stopped' : live.state.connected ? 'live' : 'connecting …'}</span></h1>
      <div class="tabs"><div role="tablist" aria-label="Rows" @keydown=${turn}>${names.map((n) => html`
        <a role="tab" id=${'tab-' + n} href=${'#/live/' + n} aria-selected=${n === tab} aria-controls="tail" tabindex=${n === tab ? 0 : -1}>${n === 'events' ? 'Events' : 'Deliveries'}</a>`)}</div>
        <input type="search" aria-label="Show only rows with this text" placeholder="Show only rows with …" .value=${q.get('for') || ''} @input=${narrow}>
        <button @click=${pause}>${live.state.paused ? 'Continue' : 'Stop'}</button></div>
      <div id="tail" role="tabpanel" aria-labelledby=${'tab-' + tab}>${table(tab, columns[tab], rows, `No ${tab} yet. They appear here as they happen.`)}</div>
      ${tab === 'events' && live.state.truncated ? html`<p class="note">The catalog has more URIs than this page reads, so some events are missing.</p>` : nothing}`;
  },
};
