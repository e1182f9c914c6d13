// Switches, the servers behind the gateway, and the audit trail.
import { html, mono, pageless, nothing, link, id, path, badge, table, time, age, pager, filters, since, until, ask, act, plural } from './ui.js';
import { get, call, pages, query } from './session.js';

const name = (s) => (s === 'all' ? 'all deliveries' : s.replace('/', ' '));

async function pause(target, title) {
  const said = await ask({ title, text: 'All instances stop these deliveries within five seconds. The deliveries wait until they are resumed, for up to 30 days.', fields: [{ name: 'reason', label: 'Reason' }], confirm: 'Pause', danger: true });
  if (said) act('Paused.', () => call('PUT', 'switches/' + target, said));
}

// named shows what a switch pauses, with a link to its page if it has one.
function named({ name: text }) {
  const [kind, of] = [text.split('/')[0], text.slice(text.indexOf('/') + 1)];
  if (kind === 'subscription') return html`subscription ${id(path('subscriptions', of), of)}`;
  return kind === 'origin' ? html`origin ${link(path('failing', of), of, 'id')}` : mono(name(text));
}

// waiting shows how many messages wait because of a switch. The API does not count them for subscriptions, whose own pages do.
const waiting = ({ waiting: w }) => (!w ? nothing : w.messages ? html`${plural(w.messages, 'message')}${w.more ? ' or more' : ''}, the oldest for ${age(w.oldest)}` : 'nothing');

export const switches = {
  title: 'Switches', every: 10_000,
  load: (_, q) => get('switches' + query(Object.fromEntries(q))),
  view(data, _, q) {
    const add = (e) => {
      e.preventDefault();
      const { kind, of } = Object.fromEntries(new FormData(e.currentTarget));
      pause(`${kind}/${kind === 'origin' ? of : encodeURIComponent(of)}`, `Pause ${kind} ${of}?`);
    };
    const all = data.items.some((s) => s.name === 'all');
    return html`<h1>Switches</h1>
      <form class="filters" @submit=${add}>
        <label><span>Pause</span><select name="kind"><option value="event">event type</option><option value="origin">origin</option><option value="subscription">subscription</option></select></label>
        <label><span>Which one</span><input name="of" required spellcheck="false" autocomplete="off"></label><button>Pause …</button>
        ${all ? nothing : html`<button type="button" class="danger" @click=${() => pause('all', 'Pause all deliveries?')}>Pause all deliveries …</button>`}
      </form>
      ${table('Paused', [
        { name: 'Paused', cell: named }, { name: 'By', cell: (s) => s.by }, { name: 'Since', cell: (s) => time(s.at) },
        { name: 'Reason', cell: (s) => s.reason }, { name: 'Waiting', cell: waiting },
        { name: '', title: 'Action', kind: 'act', cell: (s) => html`<button class="small" @click=${() => act(`${name(s.name)}: resumed.`, () => call('DELETE', 'switches/' + s.name))}>Resume</button>` },
      ], data.items, 'Nothing is paused.')}
      ${pager(data.next, q)}`;
  },
};

export const backends = {
  title: 'Backends', every: 30_000,
  load: () => pages('backends', {}, 10),
  view: (data) => html`<h1>Backends</h1>
    ${table('Backends', [
      { name: 'Name', cell: (b) => html`<b>${b.name}</b>` }, { name: 'State', cell: (b) => (b.state ? badge(b.state) : html`<span class="muted">called with callers' tokens</span>`) },
      { name: 'URL', cell: (b) => mono(b.url) }, { name: 'Prefix', cell: (b) => mono(b.prefix) },
      ...(data.items.some((b) => b.warnings) ? [{ name: 'Warnings', cell: (b) => (b.warnings ?? []).map((w) => html`<div class="bad">${w}</div>`) }] : []),
    ], data.items, 'No servers are behind the gateway.')}`,
};

const short = (v) => (v === null ? '' : JSON.stringify(v));

export const audit = {
  title: 'Audit', filtered: true, every: 10_000,
  load: (_, q) => get('audit' + query(Object.fromEntries(q))),
  view: (data, _, q) => html`<h1>Audit <span class="muted">${plural(data.items.length, 'entry', 'entries')} on this page</span></h1>
    ${filters([since, until], q)}
    ${table('Audit', [
      { name: 'Time', cell: (e) => time(e.at) }, { name: 'Who', cell: (e) => html`${e.by} <span class="muted">${e.via}</span>` }, { name: 'Action', cell: (e) => e.action },
      { name: 'Target', cell: (e) => pageless(e.target) },
      { name: 'Before and after', cell: (e) => html`${e.error ? html`<div class="bad">failed: ${e.error}</div>` : nothing}${short(e.before) || short(e.after)
        ? html`<details><summary>${e.before === null ? 'new' : e.after === null ? 'gone' : 'changed'}</summary><pre tabindex="0">${JSON.stringify({ before: e.before, after: e.after }, null, 2)}</pre></details>` : nothing}` },
    ], data.items, 'No actions in this time.')}
    ${pager(data.next, q)}`,
};
