// The list of attempts, and one delivery as a time line.
import { html, mono, nothing, link, id, path, badge, table, time, span, pager, filters, since, until, cause, plural } from './ui.js';
import { get, query, pages, isOwner } from './session.js';

// attempts returns the attempts of one delivery, the first one first. The event's list is the shortest that has them. If it is too long or
// incomplete, attempts reads the subscription's list from the time of the first known attempt.
async function attempts(sub, event) {
  let list = await pages('deliveries', { event }, 3);
  if (list.more || list.omitted || !list.items.some((a) => a.subscription === sub)) {
    const since = list.items.reduce((first, a) => (a.at < first ? a.at : first), list.items[0]?.at || '');
    const own = await pages('deliveries', { subscription: sub, event, since }, 5);
    if (own.items.length || !list.items.length) list = own;
  }
  const items = list.items.filter((a) => a.subscription === sub).reverse();
  const letters = items.at(-1)?.outcome === 'dead' ? (await get('dead-letters' + query({ subscription: sub, since: items.at(-1).at }))).items.filter((l) => l.event === event) : [];
  const target = await get('subscriptions/' + encodeURIComponent(sub)).catch(() => null);
  return { items, kept: list.kept, letter: letters[0], target };
}

function line(d, [sub, event]) {
  const { items, target } = d, last = items.at(-1), first = items[0];
  const head = html`<h1>Delivery of <span class="id">${event}</span></h1>
    <dl class="facts"><dt>Event</dt><dd>${isOwner() ? html`<span class="id">${event}</span>` : id(path('events', event) + query({ uri: first?.uri }), event)} ${first?.name || ''} ${first?.test ? badge('test') : nothing}</dd>
      <dt>Subscription</dt><dd>${target ? id(path('subscriptions', sub), sub) : html`<span class="id">${sub}</span> <span class="muted">ended</span>`} ${target && target.state !== 'active' ? badge(target.state) : nothing}</dd>
      <dt>Endpoint</dt><dd class="id">${target?.target || first?.target || first?.origin}</dd></dl>`;
  if (!items.length) {
    return html`${head}<p class="empty">${d.kept === 'all' ? 'No attempt is recorded yet.' : d.kept === 'failures' ? 'No failure is recorded, and the delivery log keeps failures only.' : 'The delivery log keeps nothing.'}</p>`;
  }
  const sum = last.outcome === 'delivered' ? `Delivered with attempt ${last.attempt}, ${span(new Date(last.at) - new Date(first.at) + first.durationMs)} after the first attempt began.`
    : last.outcome === 'dead' ? `Given up after ${plural(last.attempt, 'attempt')}: ${cause(last.category, last.statusCode)}.` : `Not delivered yet: ${cause(last.category, last.statusCode)}.`;
  return html`${head}<p class=${'sum ' + { delivered: 'ok', dead: 'bad', failed: 'warn' }[last.outcome]}>${sum}</p>
    <ol class="line" aria-label="Attempts">${items.map((a, i) => html`
      ${i ? html`<li class="gap" aria-hidden="true">${span(new Date(a.at) - new Date(items[i - 1].at))} later</li>` : nothing}
      <li class=${a.outcome}><b>Attempt ${a.attempt}</b> ${time(a.at)} ${badge(a.outcome)}<div>${a.category ? cause(a.category, a.statusCode) : a.statusCode ? `the endpoint answered ${a.statusCode}` : 'the endpoint accepted it'}, in ${span(a.durationMs)}</div>${a.response ? html`<pre class="response" tabindex="0" aria-label="The beginning of the response">${a.response}</pre>` : nothing}</li>`)}
      ${last.outcome === 'failed' && last.nextAttempt ? html`<li class="gap" aria-hidden="true">then</li><li class="next"><b>Attempt ${last.attempt + 1}</b> ${target?.state === 'paused' ? 'when the subscription is resumed' : html`at ${time(last.nextAttempt)}`}</li>` : nothing}
      ${last.outcome === 'dead' ? html`<li class="gap" aria-hidden="true">then</li><li class="dead"><b>Dead letter</b> ${d.letter ? link('dead-letters' + query({ subscription: sub }), 'retry or replay it') : html`<span class="muted">retried or expired</span>`}</li>` : nothing}
    </ol>`;
}

export const deliveries = {
  title: 'Deliveries', filtered: true,
  every: (data) => (!('target' in data) ? 10_000 : !['delivered', 'dead'].includes(data.items.at(-1)?.outcome) && 3000), // a time line may get another attempt
  load: async (parts, q) => (parts.length > 1 ? attempts(parts[0], parts[1]) : get('deliveries' + query(Object.fromEntries(q)))),
  view(data, parts, q) {
    if (parts.length > 1) return line(data, parts);
    return html`<h1>Deliveries</h1>
      ${filters([{ name: 'subscription', label: 'Subscription' }, { name: 'event', label: 'Event id' }, { name: 'origin', label: 'Origin', hint: 'https://host' },
        { name: 'outcome', label: 'Outcome', options: ['', 'delivered', 'failed', 'dead'] }, since, until], q)}
      ${data.kept === 'all' ? nothing : html`<p class="note">The delivery log keeps ${data.kept === 'none' ? 'no attempts' : 'failures only'} (--delivery-log).</p>`}
      ${data.omitted ? html`<p class="note">${plural(data.omitted, 'attempt')} ${data.omitted === 1 ? 'is' : 'are'} missing here, because there were too many at once. The lists of their subscriptions have them.</p>` : nothing}
      ${table('Attempts', [
        { name: 'Time', cell: (d) => time(d.at) }, { name: 'Outcome', cell: (d) => badge(d.outcome) },
        { name: 'Event', cell: (d) => id(path('deliveries', d.subscription, d.event), d.event) }, { name: 'Type', cell: (d) => html`${d.name}${d.test ? badge('test') : nothing}` },
        { name: 'Endpoint', cell: (d) => mono(d.target || d.origin) }, { name: 'Attempt', kind: 'num', cell: (d) => d.attempt },
        { name: 'Took', kind: 'num', cell: (d) => span(d.durationMs) }, { name: 'Why', kind: 'why', cell: (d) => cause(d.category, d.statusCode) },
        ...(data.items.some((d) => d.nextAttempt) ? [{ name: 'Next', cell: (d) => (d.nextAttempt ? time(d.nextAttempt) : nothing) }] : []),
      ], data.items, data.next ? 'This page has no matches. The next page may have some.' : 'No attempt matches.')}
      ${pager(data.next, q)}`;
  },
};
