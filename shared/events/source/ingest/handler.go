// Package ingest receives the requests and messages of sources: webhooks of providers at POST /sources/{name}, and messages that AWS
// services put into the inbox queue. It verifies them, maps them with package source, and publishes the events.
//
//	POST /sources/{name} ─▶ [Handler] ──┐
//	                                    ├─▶ catalog ─▶ publish.Service
//	inbox queue ─▶ publish.Inbox ─▶ [Bus]
//
// Package ingest remembers the ids of accepted events for three days ([Seen]), because providers redeliver for that long. If a verified
// request or message matches a mapping but cannot become a valid event, it becomes a dead letter. An operator can retry the dead letter
// after fixing the mapping or the event type.
package ingest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Names of the wildcards in the URL paths that [Handler] serves.
const (
	pathSource = "source"
	pathKey    = "key"
)

// Sources returns the sources in the configuration. [config.Stored] implements it.
type Sources interface {
	Sources(ctx context.Context) ([]source.Source, error)
}

// Publisher accepts events for delivery to subscribers. [publish.Service] implements it.
type Publisher interface {
	Accept(ctx context.Context, p auth.Principal, in []publish.Input) ([]publish.Accepted, error)
}

// Documents turns documents, which are decoded requests or messages of providers, into events and publishes them. [Handler] and [Bus]
// must use the same Publisher and the same [Seen]. A document then becomes only one event, even if an operator retries its dead letter
// and the provider sends it again.
type Documents struct {
	Sources   Sources
	Catalogs  catalog.Source
	Publisher Publisher
	Seen      Seen
	// Queue receives dead letters, which are documents that could not become events.
	Queue    queue.Sender
	Recorder Recorder
	// Metrics counts dead letters. It may be nil.
	Metrics *metric.Set
	// Now returns the current time. Nil means time.Now.
	Now func() time.Time
	// Log logs problems that the sender did not cause. Nil means slog.Default.
	Log *slog.Logger
}

func (d *Documents) log() *slog.Logger { return cmp.Or(d.Log, slog.Default()) }

func (d *Documents) now() time.Time { return periodic.Clock(d.Now)() }

func (d *Documents) sources(ctx context.Context) ([]source.Source, error) {
	all, err := d.Sources.Sources(ctx)
	return all, fault.Wrap(fault.Unavailable, err, "look up the sources")
}

// Handler serves POST /sources/{name}. For a source whose requests are not signed (scheme none), the path has a secret key as an
// additional segment.
//
// It responds with 202 {"accepted":[{"id","uri"}]} when the event is stored durably. The list is empty if no mapping matches. Errors have
// the same form as the errors of POST /events. Requests are checked in this order: Host and Origin, source, method, size, signature,
// encoding, quota, JSON, mapping, event.
type Handler struct {
	Documents
	Secrets func(context.Context, secret.Value) (string, error)
	// Rate limits the requests to each source. Nil means no quota.
	Rate *quota.Rate
	// Guard refuses requests that a browser sends on behalf of another site.
	Guard auth.Guard
	// Limited is called with the name of each limit that a request exceeds. It may be nil.
	Limited func(limit string)
	// Backends receives the webhooks of MCP servers behind the gateway. It may be nil.
	Backends *Backends

	large bodySlots
}

// principalOf returns the principal that publishes a source's events. This principal's quota limits the requests to the source.
func principalOf(s source.Source) auth.Principal {
	return auth.Principal{ID: "source/" + s.Name, Workspace: s.Workspace, Scopes: []string{auth.ScopePublish}}
}

// Mount registers the handler's paths.
func (h *Handler) Mount(mux *http.ServeMux) {
	mux.Handle("/sources/{"+pathSource+"}", h)
	mux.Handle("/sources/{"+pathSource+"}/{"+pathKey+"}", h)
	if h.Backends != nil {
		mux.HandleFunc(demand.HookPath+"{"+pathToken+"}", h.serveBackend)
	}
	mux.Handle("/sources/", h) // any other path gets a 404 from the handler
}

type answer struct {
	Accepted []publish.Accepted `json:"accepted"`
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	responder := httpjson.Responder{Challenge: `Webhook realm="` + r.PathValue(pathSource) + `"`, Log: h.Log, Limited: h.Limited}
	responder.Serve(w, withPath(r, "/sources/"+r.PathValue(pathSource)), http.StatusAccepted, func() (any, error) {
		if err := h.Guard.Check(r); err != nil {
			return nil, err
		}
		s, err := h.findSource(r)
		if err != nil {
			return nil, err
		}
		if r.Method != http.MethodPost {
			return nil, httpjson.NotAllowed(http.MethodPost)
		}
		in := incoming{Handler: h, source: s, now: h.now(), outcome: Outcome{Workspace: s.Workspace, Source: s.Name}}
		body, err := in.handle(w, r)
		if !errors.Is(err, context.Canceled) {
			h.Recorder.Record(r.Context(), in.outcome.withError(err, in.now))
		}
		return body, err
	})
}

// withPath returns a copy of the request for logging. Its URL has only the given path, from which the caller has removed a secret key or
// token.
func withPath(r *http.Request, path string) *http.Request {
	logged := r.WithContext(r.Context())
	logged.URL, logged.Pattern = &url.URL{Path: path}, ""
	return logged
}

// findSource finds the source that the request's path names. The path must have a secret key if the source's scheme is "none", and must
// not have one otherwise.
func (h *Handler) findSource(r *http.Request) (source.Source, error) {
	all, err := h.sources(r.Context())
	if err != nil {
		return source.Source{}, err
	}
	name := r.PathValue(pathSource)
	for _, s := range all {
		if s.Name == name && s.From == source.HTTP && (s.Verify.Scheme == verify.None) == (r.PathValue(pathKey) != "") {
			return s, nil
		}
	}
	return source.Source{}, fault.New(fault.NotFound, "there is no source at this path")
}

type incoming struct {
	*Handler
	source  source.Source
	now     time.Time
	outcome Outcome
}

func (in *incoming) handle(w http.ResponseWriter, r *http.Request) (any, error) {
	ctx := r.Context()
	received, held, err := in.large.read(w, r, in.Handler.now)
	defer func() { held.release() }()
	if err != nil {
		return nil, err
	}
	body, signed, err := in.verify(ctx, r, received)
	if err != nil {
		return nil, err
	}
	if held == nil && len(body) > smallBody { // a small body needs no slot, but this one became large when it was unpacked
		if held, err = in.large.reserve(auth.ClientNetwork(r.RemoteAddr), in.now, nil); err != nil {
			return nil, err
		}
	}
	if err := in.Rate.Take(ctx, principalOf(in.source), 1, in.now); err != nil {
		return nil, err
	}
	doc, err := source.ReadRequest(r, body, in.source.Verify.Headers())
	if err != nil {
		return nil, err
	}
	if challenge, ok := challengeOf(in.source, doc); ok {
		in.outcome.Kind = Verified
		return httpjson.Answer{Status: http.StatusOK, Body: map[string]string{"challenge": challenge}}, nil
	}
	ident := identity{bodyID(body), signed}
	accepted, err := in.accept(ctx, in.source, doc, ident, in.now, &in.outcome)
	if isUnfit(err) {
		if kept := in.deadLetter(ctx, in.source, doc, ident, in.outcome.ID, err, false, in.now); kept != nil {
			return nil, kept
		}
	}
	return answer{accepted}, err
}

// challengeOf returns the challenge in the request that Slack sends first, to verify that we own the URL. The response must repeat it.
// For any other request, challengeOf returns false.
func challengeOf(s source.Source, doc map[string]any) (string, bool) {
	if s.Verify.Scheme != verify.Slack {
		return "", false
	}
	return verify.Challenge(doc["body"])
}

// verify checks that the provider sent the request. It returns the decompressed body, and the hash of the signed text that
// [verify.Verifier.Verify] returns.
//
// A provider that compresses its requests may sign the body before or after compression. If the signature does not match the body as
// received, verify decompresses the body and checks again. If that fails too, the error does not reveal whether the body was malformed.
func (in *incoming) verify(ctx context.Context, r *http.Request, received []byte) (content []byte, signed string, err error) {
	v, err := newVerifier(ctx, in.source, in.Secrets)
	if err != nil { // the configuration is wrong, which only the log should explain
		return nil, "", &fault.Error{Kind: fault.Unavailable, Message: "the source " + in.source.Name + " cannot verify requests now", Err: err}
	}
	request := verify.Request{Header: r.Header, Body: received, Key: r.PathValue(pathKey)}
	signed, refused := v.Verify(request, in.now)
	switch {
	case refused == nil:
		content, err = decode(r.Header, received)
		return content, signed, err
	case !isEncoded(r.Header) || in.source.Verify.Scheme == verify.None || fault.Public(refused) != verify.NoMatch:
		return nil, "", refused // unpacking the body would not change the result
	}
	err = in.large.unpack(r, received, func(unpacked []byte) {
		request.Body = unpacked
		if signed, refused = v.Verify(request, in.now); refused == nil {
			content = unpacked
		}
	})
	if err == nil {
		err = refused
	}
	return content, signed, err
}

// accept makes an event from the document of a webhook and publishes it. It returns when the event is stored durably. It also sets the
// event's name, URI and id in the outcome o, as far as they are known, even if the event is refused.
func (d *Documents) accept(ctx context.Context, s source.Source, doc any, ident identity, now time.Time, o *Outcome) ([]publish.Accepted, error) {
	event, err := s.Map(doc)
	if err != nil || event == nil {
		o.Kind = Unmatched
		o.ID = idOf(err)
		return []publish.Accepted{}, err
	}
	if event.ID == "" {
		event.ID = ident.body
	}
	o.Name, o.ID = event.Name, event.ID
	input, _, err := d.toInput(ctx, s, event)
	if err != nil {
		return nil, err
	}
	o.URI = input.URI
	keys := ident.acceptedKeys(s, event.ID)
	last := len(keys) - 1
	end, err := d.Seen.reserve(ctx, now, keys[last], input)
	if err != nil {
		return nil, err
	}
	added := false
	if end != nil {
		defer func() { end(added) }()
	}
	all, err := d.Seen.findAccepted(ctx, now, keys)
	if err != nil {
		return nil, err
	}
	if known := cmp.Or(all...); known != nil {
		o.Kind, o.ID, o.URI = Duplicate, known.ID, known.URI
		// The event was accepted before, so do not publish it again. Do not record the id of this request: an attacker may have changed
		// the id, because the signature does not cover it. Record only the hash of the signed text, which is the last key.
		if added = all[last] == nil; added {
			d.remember(ctx, s, now, keys[last:], *known)
		}
		return []publish.Accepted{*known}, nil
	}
	if end == nil {
		return nil, fault.New(fault.Unavailable, "the same request is being accepted under another id; try again")
	}
	accepted, err := d.Publisher.Accept(ctx, principalOf(s), []publish.Input{input})
	if err != nil {
		return nil, toUnprocessable(err)
	}
	o.Kind, o.ID, added = Accepted, accepted[0].ID, true
	d.remember(ctx, s, now, keys, accepted[0])
	return accepted, nil
}

// remember records the keys of a published event or dead letter, so that the server recognizes repetitions. If the write fails, the event
// or dead letter may be repeated but is not lost.
func (d *Documents) remember(ctx context.Context, s source.Source, now time.Time, keys []store.Key, accepted publish.Accepted) {
	if err := d.Seen.Add(ctx, now, keys, accepted); err != nil {
		d.log().WarnContext(ctx, "source id not recorded", "source", s.Name, "error", err)
	}
}

// toUnprocessable converts an error about the content of an event to the kind fault.Unprocessable, because the cause is the document or
// its mapping. Other errors stay the same.
func toUnprocessable(err error) error {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound:
		return fault.New(fault.Unprocessable, "%s", fault.Public(err)).With(fault.DataOf(err))
	}
	return err
}

// idOf returns the event id in an error of [source.Source.Map], or "" if the mapping found none.
func idOf(err error) string {
	unfit, _ := fault.DataOf(err).(source.Unfit)
	return unfit.ID
}

// isUnfit reports whether an operator can fix the cause of an error by changing the mapping or the event type.
func isUnfit(err error) bool {
	return fault.Is(err, fault.Unprocessable) || fault.Is(err, fault.TooLarge)
}

// toInput looks up the event's type in the catalog of the source's workspace, and makes the event's URI.
func (d *Documents) toInput(ctx context.Context, s source.Source, e *source.Event) (publish.Input, *catalog.Catalog, error) {
	cat, err := d.Catalogs.Catalog(ctx, s.Workspace)
	if err != nil {
		return publish.Input{}, nil, fault.Wrap(fault.Unavailable, err, "look up the event types")
	}
	input, err := newInput(cat, s, e)
	return input, cat, err
}

func newInput(cat *catalog.Catalog, s source.Source, e *source.Event) (publish.Input, error) {
	entry := cat.ByName(e.Name)
	if entry == nil {
		return publish.Input{}, fault.New(fault.Unprocessable, "the event type %s is not in the catalog of workspace %s", e.Name, s.Workspace)
	}
	if missing := missingVariables(entry, e.Variables); len(missing) > 0 {
		return publish.Input{}, fault.New(fault.Unprocessable, "%s: the mapping has no variable %s", e.Name, strings.Join(missing, ", "))
	}
	return publish.Input{
		URI: entry.Expand(e.Variables), ID: e.ID, Source: "source/" + s.Name, Time: e.Time, Data: e.Data, Workspace: s.Workspace,
		URIAt: "/variables", DataAt: "/data", // pointers into the mapping, for faults
	}, nil
}

const (
	// smallBody is the largest body that the server reads without a [bodySlot]. A sender can be verified only after its body was read, so
	// the slots limit the memory that unverified senders can use.
	smallBody = 256 << 10
	// largeBodies is the maximum number of bodies in memory that are larger than smallBody.
	largeBodies = 25
	// largeTime limits how long a large body may take to arrive after its first smallBody bytes. Providers do not wait longer.
	largeTime = 10 * time.Second
	// largeStall limits how long the next largePart bytes of a large body may take to arrive, so that a stalled sender frees its slot
	// early.
	largeStall = 2 * time.Second
	largePart  = 64 << 10
	// largeSlow is how long a large body may take to arrive before it can lose its slot to another request. This happens only if all
	// slots are in use.
	largeSlow = 250 * time.Millisecond
	// maxUnpacking is how many unverified requests of one client may wait for their turn to be decompressed.
	maxUnpacking = 4
	// maxReserved is the maximum memory reserved for a body before any of it has arrived.
	maxReserved = 64 << 10
)

// bodySlots limits the memory for the bodies of senders that are not verified yet. The zero value is ready to use.
type bodySlots struct {
	mu      sync.Mutex
	taken   map[*bodySlot]struct{}
	waiting map[netip.Prefix]int // number of requests waiting to be unpacked

	turn sync.Mutex // held while unpacking the body of an unverified sender
}

// bodySlot is the permission to hold one large body in memory.
type bodySlot struct {
	slots    *bodySlots
	client   netip.Prefix
	since    time.Time
	received int    // bytes of the body so far
	abort    func() // ends the reading of the body; nil when it is not being read
	lost     bool   // whether the slot was given to another request
}

// reserve returns a slot, which permits a large body of the given client in memory. If all slots are in use, reserve takes the slot away
// from a body that arrives slowly. If no body arrives slowly, reserve returns an error.
//
// If another request takes the slot later, the function cut is called, which must stop the reading of the body. The parameter cut is nil
// for a body that has already been read, for example for a small body that becomes large when it is decompressed. Such a body never loses
// its slot.
func (s *bodySlots) reserve(client netip.Prefix, now time.Time, cut func()) (*bodySlot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.taken) >= largeBodies && !s.makeRoom(client, now) {
		return nil, quota.Exceeded("largeBodies", largeBodies, "%d bodies of more than %d bytes are being read; try again", largeBodies, smallBody)
	}
	if s.taken == nil {
		s.taken = map[*bodySlot]struct{}{}
	}
	slot := &bodySlot{slots: s, client: client, since: now, received: smallBody, abort: cut}
	s.taken[slot] = struct{}{}
	return slot, nil
}

// makeRoom frees a slot for reading a large request body of the given client. It takes the slot away from the body that arrives most
// slowly, and returns false if all bodies must be spared. The caller holds the lock.
//
// makeRoom spares bodies that were read completely, and bodies that began to arrive less than [largeSlow] ago. But it does not spare a new
// body whose client has at least two slots more than the given client. Otherwise one client could keep out all others with new requests.
func (s *bodySlots) makeRoom(client netip.Prefix, now time.Time) bool {
	has := map[netip.Prefix]int{}
	for slot := range s.taken {
		has[slot.client]++
	}
	var slowest *bodySlot
	for slot := range s.taken {
		if slot.abort == nil || has[slot.client] <= has[client]+1 && now.Sub(slot.since) < largeSlow {
			continue
		}
		if slowest == nil || slot.averageRate(now) < slowest.averageRate(now) {
			slowest = slot
		}
	}
	if slowest == nil {
		return false
	}
	slowest.lost = true
	slowest.abort()
	delete(s.taken, slowest)
	return true
}

// averageRate returns the average rate at which the body has arrived, in bytes per second.
func (slot *bodySlot) averageRate(now time.Time) float64 {
	return float64(slot.received) / max(now.Sub(slot.since), time.Millisecond).Seconds()
}

// await records in the slot how many more bytes have arrived, and sets the deadline for reading the next ones. It returns false if
// another request took the slot.
func (slot *bodySlot) await(control *http.ResponseController, until time.Time, arrived int64) bool {
	slot.slots.mu.Lock()
	defer slot.slots.mu.Unlock()
	slot.received += int(arrived)
	if !slot.lost {
		_ = control.SetReadDeadline(until) // fails in a Lambda function, which has the whole body already
	}
	return !slot.lost
}

// done records that the body is no longer being read. It returns false if the slot was given to another request. It keeps the read
// deadline of an incomplete body, because net/http reads the rest before it responds and could otherwise wait forever.
func (slot *bodySlot) done(control *http.ResponseController, complete bool) bool {
	slot.slots.mu.Lock()
	defer slot.slots.mu.Unlock()
	slot.abort = nil
	if !slot.lost && complete {
		_ = control.SetReadDeadline(time.Time{})
	}
	return !slot.lost
}

// release gives the slot back, so that another large body can use it. The receiver may be nil.
func (slot *bodySlot) release() {
	if slot != nil {
		slot.slots.mu.Lock()
		defer slot.slots.mu.Unlock()
		delete(slot.slots.taken, slot)
	}
}

// read reads a request body of at most [publish.MaxBody] bytes. It takes a slot for a large body only after more than [smallBody] bytes
// have arrived. If it relied on Content-Length, a few requests that announce large bodies and send no bytes could take all slots.
//
// The caller must release the slot, which is nil for a small body.
func (s *bodySlots) read(w http.ResponseWriter, r *http.Request, clock func() time.Time) (content []byte, slot *bodySlot, err error) {
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, maxReserved)) + bytes.MinRead)
	}
	coming := http.MaxBytesReader(w, r.Body, publish.MaxBody)
	n, err := body.ReadFrom(io.LimitReader(coming, smallBody+1))
	if err == nil && n > smallBody {
		control := http.NewResponseController(w)
		end := time.Now().Add(largeTime)
		slot, err = s.reserve(auth.ClientNetwork(r.RemoteAddr), clock(), func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
		if err != nil {
			return nil, nil, err
		}
		until := func() time.Time {
			if next := time.Now().Add(largeStall); next.Before(end) {
				return next
			}
			return end
		}
		for n = 0; slot.await(control, until(), n); {
			if n, err = body.ReadFrom(io.LimitReader(coming, largePart)); err != nil || n == 0 {
				break
			}
		}
		if !slot.done(control, err == nil) {
			return nil, nil, quota.Exceeded("largeBodies", largeBodies, "the body arrived too slowly while %d large ones were being read; try again", largeBodies)
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = tooLarge()
	} else if err != nil {
		err = fault.New(fault.Invalid, "the body ended early")
	}
	return body.Bytes(), slot, err
}

// unpack decompresses a body and calls use with the result, unless the body is malformed. It handles only one body at a time,
// because a few KiB from an unverified sender can become 5 MiB.
func (s *bodySlots) unpack(r *http.Request, received []byte, use func(content []byte)) error {
	client := auth.ClientNetwork(r.RemoteAddr)
	s.mu.Lock()
	if s.waiting[client] >= maxUnpacking {
		s.mu.Unlock()
		return quota.Exceeded("unpacking", maxUnpacking, "%d bodies from this address are waiting to be unpacked; try again", maxUnpacking)
	}
	if s.waiting == nil {
		s.waiting = map[netip.Prefix]int{}
	}
	s.waiting[client]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[client]--; s.waiting[client] == 0 {
			delete(s.waiting, client)
		}
	}()
	s.turn.Lock()
	defer s.turn.Unlock()
	if err := r.Context().Err(); err != nil {
		return err
	}
	if content, err := decode(r.Header, received); err == nil {
		use(content)
	}
	return nil
}

func isEncoded(h http.Header) bool {
	encoding := h.Get("Content-Encoding")
	return encoding != "" && !strings.EqualFold(encoding, "identity")
}

// decode decompresses a body if it has a Content-Encoding. The decompressed body, like the received body, has at most [publish.MaxBody]
// bytes.
func decode(h http.Header, body []byte) ([]byte, error) {
	switch encoding := h.Get("Content-Encoding"); {
	case !isEncoded(h):
		return body, nil
	case strings.EqualFold(encoding, "gzip"):
		return unzip(body, publish.MaxBody)
	default:
		return nil, fault.New(fault.Unsupported, "the Content-Encoding %.32q is not supported (allowed: gzip)", encoding)
	}
}

func unzip(body []byte, most int) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not GZIP")
	}
	content, err := io.ReadAll(io.LimitReader(z, int64(most)+1))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not GZIP")
	}
	if len(content) > most {
		return nil, tooLarge()
	}
	return content, nil
}

func tooLarge() error {
	return fault.New(fault.TooLarge, "the body is larger than %d bytes", publish.MaxBody).AtLimit("body", publish.MaxBody)
}
