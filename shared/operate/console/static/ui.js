// The parts of pages. lit-html escapes every value in ${}, so data cannot become markup.
import { html, nothing, render } from './lib/lit-html.js';

export { html, nothing, render };

const two = (n) => String(n).padStart(2, '0');

// inUTC reports whether this tab shows times in UTC instead of the browser's zone.
export const inUTC = () => sessionStorage.getItem('utc') === 'yes';
export const setUTC = (on) => sessionStorage.setItem('utc', on ? 'yes' : 'no');

// zone returns the name of the time zone of the shown times.
export const zone = () => (inUTC() ? 'UTC' : Intl.DateTimeFormat().resolvedOptions().timeZone);

const day = (d) => (inUTC() ? d.toISOString().slice(0, 10) : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`);
const clock = (d) => (inUTC() ? d.toISOString().slice(11, 19) : `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`);

// time shows a time, with its day unless that is today. The title has the whole time with its zone.
export function time(t) {
  if (!t) return html`<span class="muted">–</span>`;
  const d = new Date(t), at = day(d);
  return html`<time datetime=${t} title=${`${at} ${clock(d)} ${zone()} (${t})`}>${at === day(new Date()) ? '' : at + ' '}${clock(d)}</time>`;
}

// span returns a duration in milliseconds as text, e.g. "2 h 5 min".
export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const units = [[86400e3, 'd'], [3600e3, 'h'], [60e3, 'min'], [1e3, 's']];
  const i = units.findIndex(([size]) => ms >= size);
  const [size, name] = units[i], n = ms / size;
  if (name === 's') return `${n < 10 ? n.toFixed(1) : Math.round(n)} s`;
  const rest = Math.round((ms % size) / units[i + 1][0]);
  return rest ? `${Math.floor(n)} ${name} ${rest} ${units[i + 1][1]}` : `${Math.floor(n)} ${name}`;
}

// age returns as text how long ago a time was.
export const age = (t) => span(Math.max(0, Date.now() - new Date(t)));

export const number = (n) => n.toLocaleString('en');
export const plural = (n, one, many = one + 's') => `${number(n)} ${n === 1 ? one : many}`;

const tones = {
  active: 'ok', delivered: 'ok', reached: 'ok', ready: 'ok', done: 'ok', paused: 'warn', failed: 'warn', retrying: 'warn', waiting: 'warn', running: 'warn',
  accepted: 'ok', verified: 'ok', unverified: 'bad', invalid: 'bad', unfit: 'bad', limited: 'warn', unavailable: 'bad',
  suspended: 'bad', disabled: 'bad', dead: 'bad', 'given up': 'bad', unreachable: 'bad',
};

export const badge = (word, tone = tones[word]) => html`<span class="badge ${tone || 'plain'}">${word}</span>`;

export const link = (to, text, kind = '') => html`<a class=${kind} href=${'#/' + to} title=${kind && text}>${text}</a>`;
// short shortens a long id in the middle by its style only, so that people can still select and find the whole id.
const short = (text) => (text?.length > 24 && !text.includes('/') ? html`<span class="head">${text.slice(0, -6)}</span>${text.slice(-6)}` : text);
// copier is a button that copies a text, where the browser allows that.
const copier = (text, kind, label) => (navigator.clipboard && text ? html`<button type="button" class=${kind} aria-label=${`Copy ${text}`} title="Copy" @click=${() => navigator.clipboard.writeText(text).then(() => toast('Copied.'), (e) => toast(e.message, true))}>${label}</button>` : nothing);

export const id = (to, text) => html`<span class="one"><a class="id" href=${'#/' + to} title=${text ?? ''}>${short(text)}</a>${copier(text, 'icon', '')}</span>`;
export const mono = (text) => (text == null ? nothing : html`<span class="id" title=${text ?? ''}>${text}</span>`);
export const pageless = (text) => html`<span class="one"><span class="id" title=${text ?? ''}>${short(text)}</span>${copier(text, 'icon', '')}</span>`;
export const path = (...parts) => parts.map(encodeURIComponent).join('/');

// copyable shows a whole text with a button that copies it.
export const copyable = (text) => html`<span class="id">${text}</span>${copier(text, 'small quiet copy', 'Copy')}`;

// table returns a table. On a phone its rows are cards, and then browsers need the explicit roles.
export function table(label, columns, rows, empty = 'Nothing here.') {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll"><table role="table" aria-label=${label}>
    <thead role="rowgroup"><tr role="row">${columns.map((c) => html`<th role="columnheader" scope="col" class=${c.kind || ''}>${c.name}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((row) => html`<tr role="row">${columns.map((c) => html`
      <td role="cell" class=${c.kind || ''} data-name=${c.title ?? c.name}><div>${c.cell(row)}</div></td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// suggest has the names of event types for the filters, once they are known.
export const suggest = {};

// since and until are the fields for times, which moment in session.js converts.
export const since = { name: 'since', label: 'Since', hint: '2h or a day', suggest: 'times' };
export const until = { name: 'until', label: 'Until', hint: '15m or a day', suggest: 'times' };

const field = (f, q) => html`<input name=${f.name} .value=${q.get(f.name) || ''} placeholder=${f.hint || ''} list=${f.suggest || nothing} spellcheck="false" autocomplete="off">`;

// picker lets a person pick a day and a time, and writes them into the field before it.
function picker(f, q) {
  const [day, clock] = (q.get(f.name) || '').split(' ');
  return html`<input type="datetime-local" aria-label=${`Pick a day and a time: ${f.label}`} .value=${clock ? `${day}T${clock}` : ''}
    @input=${(e) => { e.target.parentElement.querySelector('[name]').value = e.target.value.replace('T', ' '); }}>`;
}

// filters returns a form whose values become the query in the address. The members named in keep stay as they are.
export function filters(fields, q, keep = []) {
  const kept = Object.fromEntries(keep.map((k) => [k, q.get(k)])), here = () => location.hash.slice(2).split('?')[0];
  const change = (e) => {
    e.preventDefault();
    const form = new FormData(e.currentTarget);
    go(here(), { ...kept, ...Object.fromEntries([...form].map(([k, v]) => [k, v.trim()])) });
  };
  return html`<form class="filters" @submit=${change} @change=${(e) => e.target.tagName === 'SELECT' && e.currentTarget.requestSubmit()}>
    ${fields.map((f) => html`<label><span>${f.label}</span>${f.options
      ? html`<select name=${f.name}>${f.options.map((o) => html`<option value=${o} ?selected=${o === (q.get(f.name) || '')}>${o || 'any'}</option>`)}</select>`
      : f.suggest === 'times' ? html`<span class="when">${field(f, q)}${picker(f, q)}</span>` : field(f, q)}</label>`)}
    <datalist id="times">${['15m', '1h', '24h', '7d'].map((v) => html`<option value=${v}></option>`)}</datalist>
    <datalist id="types">${(suggest.types ?? []).map((v) => html`<option value=${v}></option>`)}</datalist>
    <button>Filter</button>${[...q.keys()].some((k) => k !== 'cursor' && !keep.includes(k)) ? html`<a class="button quiet" href=${address(here(), kept)}>Clear</a>` : nothing}
  </form>`;
}

// address returns the address of a page. It leaves out members without a value.
function address(to, members) {
  const q = new URLSearchParams(Object.entries(members).filter(([, v]) => v));
  return '#/' + to + (q.size ? '?' + q : '');
}

// go changes the address.
export function go(to, members = {}) {
  location.hash = address(to, members);
}

// pager returns links to the next page of a list and, with the browser's history, back.
export function pager(next, q) {
  const on = new URLSearchParams(q);
  if (!next && !q.get('cursor')) return nothing;
  on.set('cursor', next);
  return html`<nav class="pager" aria-label="Pages">
    ${q.get('cursor') ? html`<button class="quiet" @click=${() => history.back()}>Back</button>` : nothing}
    ${next ? html`<a class="button" href=${'#/' + location.hash.slice(2).split('?')[0] + '?' + on}>Next page</a>` : nothing}</nav>`;
}

let toasted;

export function toast(text, bad) {
  const at = document.getElementById('toast');
  at.textContent = text;
  at.className = bad ? 'bad on' : 'on';
  clearTimeout(toasted);
  toasted = setTimeout(() => { at.className = ''; }, 6000);
}

// ask shows a dialog. It resolves to the values of its fields, or to null if the person cancels.
export function ask({ title, text, fields = [], confirm, danger }) {
  const at = document.getElementById('dialog');
  return new Promise((resolve) => {
    let result = null;
    const submit = (e) => {
      e.preventDefault();
      result = Object.fromEntries(new FormData(e.currentTarget));
      at.close();
    };
    render(html`<form @submit=${submit}>
      <h2 id="dialog-title">${title}</h2><p>${text}</p>
      ${fields.map((f) => html`<label><span>${f.label}</span><input name=${f.name} .value=${f.value ?? ''} type=${f.type || 'text'} min=${f.min ?? nothing} max=${f.max ?? nothing} maxlength="500" ?required=${f.required} autocomplete="off"></label>`)}
      <div class="actions"><button type="button" class="quiet" @click=${() => at.close()}>Cancel</button><button class=${danger ? 'danger' : 'primary'}>${confirm}</button></div>
    </form>`, at);
    at.onclose = () => { render(nothing, at); resolve(result); };
    at.showModal();
    at.querySelector('input, .actions button:last-child').focus();
  });
}

// act performs an action, shows whether it worked, and loads the page again.
export async function act(done, doing) {
  try {
    await doing();
    toast(done);
  } catch (e) {
    toast(e.message, true);
  }
  dispatchEvent(new Event('reload'));
}

const causes = {
  connection_refused: 'the endpoint refused or closed the connection', timeout: 'the endpoint did not answer in time', tls_error: 'its certificate or TLS version was not accepted',
  dns_error: 'its host name was not found', blocked: 'the server does not send to its address', http_4xx: 'the endpoint answered 4xx',
  http_5xx: 'the endpoint answered 5xx', challenge_failed: 'the endpoint did not prove that it wants the events',
  aborted: 'the attempt was interrupted', expired: 'the event was no longer stored', internal: 'this server failed',
};

const statuses = {
  301: 'redirects are not followed', 302: 'redirects are not followed', 303: 'redirects are not followed', 307: 'redirects are not followed', 308: 'redirects are not followed',
  400: 'bad request', 401: 'not authorized', 403: 'forbidden', 404: 'not found', 405: 'method not allowed', 408: 'timeout', 410: 'gone', 413: 'too large',
  429: 'too many requests', 500: 'internal error', 502: 'bad gateway', 503: 'unavailable', 504: 'gateway timeout',
};

// cause returns why an attempt failed, with the HTTP status if the endpoint answered.
export const cause = (category, code) => (code && category ? `the endpoint answered ${code}${statuses[code] ? ` (${statuses[code]})` : ''}` : causes[category] || category || '');

// LineChart draws lines over time. Its property data is [times, values…], and lines is [{label, color}].
class LineChart extends HTMLElement {
  set data(data) {
    this.values = data;
    this.plot ? this.plot.setData(data) : this.draw();
  }

  connectedCallback() {
    this.size = new ResizeObserver(() => this.plot ? this.plot.setSize({ width: this.clientWidth, height: this.clientHeight }) : this.draw());
    this.size.observe(this);
    this.scheme = matchMedia('(prefers-color-scheme: dark)');
    this.again = () => { this.plot?.destroy(); this.plot = null; this.draw(); };
    this.scheme.addEventListener('change', this.again);
  }

  disconnectedCallback() {
    this.size.disconnect();
    this.scheme.removeEventListener('change', this.again);
    this.plot?.destroy();
    this.plot = null;
  }

  draw() {
    if (!this.values || !this.clientWidth || !this.isConnected) return;
    const style = getComputedStyle(this), color = (name) => style.getPropertyValue('--' + name).trim();
    const axis = { stroke: color('muted'), grid: { stroke: color('line'), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
    const clock = (t) => { const d = new Date(t * 1000); return `${two(d.getHours())}:${two(d.getMinutes())}`; };
    this.plot = new uPlot({
      width: this.clientWidth, height: this.clientHeight, legend: { show: false }, cursor: { y: false, points: { size: 6 } }, padding: [8, 8, 0, 0],
      scales: { x: { time: true }, y: { range: (_, min, max) => [0, Math.max(max * 1.15, this.least || 1)] } },
      axes: [{ ...axis, size: 24, values: (_, ts) => ts.map(clock), space: 70 }, { ...axis, size: 44, values: (_, vs) => vs.map((v) => number(v)), space: 28 }],
      series: [{}, ...this.lines.map((l) => ({ label: l.label, stroke: color(l.color), fill: l.fill ? color(l.color) + '22' : undefined, width: 1.5, points: { show: false } }))],
    }, this.values, this);
  }
}

customElements.define('line-chart', LineChart);
