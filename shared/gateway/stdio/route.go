package stdio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Over HTTP, a message belongs to the request whose response stream carries it. A process writes all messages to a single stream, so the
// transport decides by these rules:
//
//   - A response belongs to the request with its id.
//   - Progress belongs to the request with its token. Requests of several clients may have the same token, so the transport replaces it
//     by a unique one.
//   - A notification with a subscription id belongs to the subscriptions/listen request with this id (2026-07-28, Subscriptions), or to
//     the stream of events (SEP-3415).
//   - A question of a session's process (elicitation, sampling, roots) names no request. It goes to the newest running call. If no call
//     runs, the question waits a few seconds for the next one.
//   - A question may be open when its call ends. After a response to the call, some clients can still answer the question. For other
//     clients, the question goes to the newest call that still runs, or waits for the next one. After a cancelled call, it goes to the
//     newest call or is refused.
//   - The cancellation of a question goes to the call that carried the question, or after that call to the newest or next one.
//   - A log message names no request. In a session it goes to the newest or next call. In the shared process, where calls of other
//     principals run, it goes to the request that asks for log messages. If several requests ask for them, the transport drops it.
//   - Changes of lists and resources go to the GET stream of the gateway.

// question is a request that the process sends to a client, for example an elicitation.
type question struct {
	raw   json.RawMessage
	asked *exchange // the request whose stream carried the question to the client, or nil
	shown bool      // the request that carried it has ended, and the client can still answer it
	since time.Time
}

// waits reports whether the question still waits for a call that carries it to the client.
func (q question) waits() bool { return q.asked == nil && !q.shown }

// Reasons for dropping a message of a process; see [Transport.Dropped].
const (
	dropNotMessage = upstream.NotMessage
	dropNotJSON    = upstream.NotJSON
	dropLong       = "it is larger than 8 MiB"
	dropStranger   = "it belongs to no running request"
	dropAmbiguous  = "it may belong to several requests"
	dropQuestion   = "it asks a client outside of a session"
)

func (p *process) drop(reason string) {
	if t := p.server.t; t.Dropped != nil {
		t.Dropped(context.Background(), p.server.backend, reason)
	}
}

func (p *process) route(line []byte) {
	parts, _, bad := jsonrpc.SplitDeep(line, maxDepth)
	if bad != nil {
		p.drop(dropNotJSON)
		return
	}
	for _, raw := range parts {
		m, ok := upstream.Read(raw)
		if !ok {
			p.drop(dropNotMessage)
			continue
		}
		p.mu.Lock()
		reason := p.deliver(m)
		p.mu.Unlock()
		if reason != "" {
			p.drop(reason)
		}
	}
}

// maxDepth limits how deeply a message may be nested. Package upstream, which reads the messages, checks the nesting again, with a lower
// limit for most requests.
const maxDepth = 1000

// deliver hands a message to the request to which it belongs, or returns the reason why it cannot. The caller holds the lock.
func (p *process) deliver(m upstream.Message) (reason string) {
	params := jsonrpc.Member(m.Raw, "params")
	meta := jsonrpc.Member(params, "_meta")
	switch {
	case m.Response():
		return p.deliverResponse(m)
	case m.ID != nil:
		return p.deliverQuestion(m)
	case m.Method == spec.NoteProgress:
		token := jsonrpc.Member(params, "progressToken")
		for _, x := range p.exchanges {
			if x.sent != nil && jsonrpc.SameID(token, x.sent) {
				p.push(x, jsonrpc.Replace(m.Raw, "params", jsonrpc.Replace(params, "progressToken", x.token)))
				return ""
			}
		}
		return dropStranger
	case jsonrpc.Member(meta, spec.MetaSubscription) != nil:
		if x := p.find(jsonrpc.Member(meta, spec.MetaSubscription)); x != nil {
			p.push(x, m.Raw)
			return ""
		}
		return dropStranger
	case m.Method == spec.NoteCancelled && p.holder != "":
		id := string(jsonrpc.Member(params, "requestId"))
		q, open := p.questions[id]
		delete(p.questions, id)
		switch {
		case q.asked != nil:
			p.push(q.asked, m.Raw)
		case !open || q.shown:
			p.pushToNewest(m.Raw)
		}
		return ""
	case m.Method == spec.NoteMessage && p.stateless:
		return p.deliverLog(m)
	case p.holder == "" && !p.stateless:
		if p.listening != nil {
			p.push(p.listening, m.Raw)
		}
		return ""
	case sessionNotifications[m.Method]:
		return "" // the gateway lists the backend with the shared process, which reports its own changes
	}
	if p.holder != "" && (m.Method == spec.NoteMessage || p.newestCall() != nil) {
		p.pushToNewest(m.Raw)
		return ""
	}
	return dropStranger
}

// pushToNewest hands a notification to the newest running call of a session. If no call is running, it keeps a short notification for the
// next call.
func (p *process) pushToNewest(message json.RawMessage) {
	switch x := p.newestCall(); {
	case x != nil:
		p.push(x, message)
	case len(p.notes) < maxEarly && len(message) <= maxNote:
		p.notes = append(p.notes, message)
	}
}

// sessionNotifications has the notifications that report changes of a backend's lists and resources, and so do not belong to a call.
var sessionNotifications = map[string]bool{
	spec.NoteToolsChange: true, spec.NotePromptsChange: true, spec.NoteResourcesChange: true, spec.NoteUpdated: true,
}

func (p *process) deliverResponse(m upstream.Message) (reason string) {
	x := p.find(m.ID)
	if x == nil {
		if m.ID != nil && p.late[string(m.ID)] {
			delete(p.late, string(m.ID))
			return "" // the response to a cancelled request
		}
		return dropStranger
	}
	if x.method == spec.MethodInitialize && m.Result != nil {
		m.Raw = jsonrpc.Replace(m.Raw, "result", withKnownVersion(m.Result))
	}
	p.push(x, m.Raw)
	x.answered = true
	x.end(io.EOF)
	p.remove(x)
	if x.method == spec.MethodInitialize && m.Error != nil && p.holder != "" {
		go p.stop("it refused the session")
	}
	return ""
}

func (p *process) deliverQuestion(m upstream.Message) (reason string) {
	refuse := func(why string) {
		p.reply(jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: jsonrpc.MethodNotFound, Message: why}))
	}
	switch {
	case p.stateless:
		return dropQuestion // in 2026-07-28, backends send no requests, and clients must not send responses
	case m.Method == spec.MethodPing:
		p.reply(jsonrpc.AppendResult(nil, m.ID, json.RawMessage(`{}`)))
		return ""
	case p.holder == "" || len(p.questions) >= maxQuestions || p.questionBytes()+len(m.Raw) > maxQueued:
		refuse("there is no client that could answer " + m.Method)
		return dropQuestion
	}
	q := question{raw: m.Raw, asked: p.newestCall(), since: time.Now()}
	if q.asked == nil {
		id, waiting := string(m.ID), 0
		for _, q := range p.questions {
			if q.waits() {
				waiting++
			}
		}
		if before, repeats := p.questions[id]; repeats && before.waits() || waiting >= maxEarly {
			refuse("no call is running that could answer " + m.Method)
			return dropQuestion
		}
		time.AfterFunc(earlyTime, func() { p.expire(id) })
	} else {
		p.push(q.asked, m.Raw)
	}
	p.questions[string(m.ID)] = q
	return ""
}

func (p *process) questionBytes() (sum int) {
	for _, q := range p.questions {
		sum += len(q.raw)
	}
	return sum
}

func (p *process) expire(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, ok := p.questions[id]
	limit := earlyTime
	if q.shown {
		limit = lateTime
	}
	if ok && q.asked == nil && time.Since(q.since) >= limit {
		delete(p.questions, id)
		p.reply(jsonrpc.AppendError(nil, json.RawMessage(id), &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "no call is running"}))
	}
}

// recordAnswer forgets a question because the client has answered it. It returns false if the question is not open, for example because
// the client has already answered it in another call.
func (p *process) recordAnswer(id json.RawMessage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, open := p.questions[string(id)]
	delete(p.questions, string(id))
	return open
}

// moveQuestions handles the questions that are open when a request ends. If the request has a response and the client can still answer,
// the questions only wait for the answers. Otherwise they go to another running call. If no call is running, the questions of a request
// with a response wait for the next call, and the questions of a cancelled request are refused.
func (p *process) moveQuestions(from *exchange) {
	for id, q := range p.questions {
		if q.asked != from {
			continue
		}
		q.asked, q.since = p.newestCall(), time.Now()
		switch {
		case from.answered && p.answersLate:
			q.asked, q.shown = nil, true
			time.AfterFunc(lateTime, func() { p.expire(id) })
		case q.asked != nil:
			p.push(q.asked, q.raw)
		case from.answered:
			time.AfterFunc(earlyTime, func() { p.expire(id) })
		default:
			delete(p.questions, id)
			p.reply(jsonrpc.AppendError(nil, json.RawMessage(id), &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "the call was cancelled"}))
			continue
		}
		p.questions[id] = q
	}
}

// deliverLog hands a log message of a shared process to the request that asks for log messages, if there is exactly one. Otherwise it
// returns a reason to drop the message, because the message does not say to which request it belongs.
func (p *process) deliverLog(m upstream.Message) (reason string) {
	var only *exchange
	for _, x := range p.exchanges {
		if x.asksLog {
			if only != nil {
				return dropAmbiguous
			}
			only = x
		}
	}
	if only == nil {
		return dropStranger
	}
	p.push(only, m.Raw)
	return ""
}

func (p *process) find(id json.RawMessage) *exchange {
	if x := p.exchanges[string(id)]; x != nil {
		return x
	}
	for _, x := range p.exchanges {
		if jsonrpc.SameID(id, x.id) {
			return x
		}
	}
	return nil
}

func (p *process) newestCall() (newest *exchange) {
	for _, x := range p.exchanges {
		if !gatewayMethods[x.method] && (newest == nil || x.number > newest.number) {
			newest = x
		}
	}
	return newest
}

// gatewayMethods has the methods of the gateway's own requests. A question never belongs to one of them, because the gateway itself answers
// no questions.
var gatewayMethods = map[string]bool{
	spec.MethodInitialize: true, spec.MethodDiscover: true, spec.MethodPing: true, spec.MethodSetLevel: true, spec.MethodListen: true,
	spec.MethodToolsList: true, spec.MethodPromptsList: true, spec.MethodResources: true, spec.MethodTemplates: true,
	spec.MethodSubscribe: true, spec.MethodUnsubscribe: true, spec.MethodUserMessage: true, spec.MethodAssistant: true,
	spec.MethodEvents: true, spec.MethodEventsStream: true,
}

// push adds a message to a request's queue. If all queues of the process together get too long, push ends the request that has the
// longest queue. That request fails with errTooSlow.
func (p *process) push(x *exchange, message []byte) {
	if x.closed || x.err != nil {
		return
	}
	x.queue = append(x.queue, message)
	x.size += len(message) + messageCost
	p.queued += len(message) + messageCost
	x.signal()
	if p.queued <= maxQueued {
		return
	}
	longest := x
	for _, other := range p.exchanges {
		if other.size > longest.size {
			longest = other
		}
	}
	if l := p.listening; l != nil && l.size > longest.size {
		longest = l
	}
	p.discard(longest)
	longest.end(errTooSlow)
}

// messageCost is added to the length of a queued message, because many short messages need memory too.
const messageCost = 64

func (p *process) discard(x *exchange) {
	p.queued -= x.size
	x.queue, x.size = nil, 0
}

// open registers the request x before it is sent to the process. If x can carry questions to a client (see [gatewayMethods]), it also
// gets the process's notifications and questions that arrived while no call was running.
func (p *process) open(x *exchange, params json.RawMessage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isEnding() {
		return io.ErrClosedPipe
	}
	if p.exchanges[string(x.id)] != nil {
		return fmt.Errorf("stdio: a request with the id %s is running", x.id)
	}
	p.opened++
	x.number = p.opened
	x.asksLog = jsonrpc.Member(jsonrpc.Member(params, "_meta"), spec.MetaLogLevel) != nil
	p.exchanges[string(x.id)] = x
	if p.holder != "" {
		p.used = time.Now()
	}
	p.watch(x, params, true)
	if !x.staysOpen() {
		p.calls++
	}
	if !gatewayMethods[x.method] {
		for _, note := range p.notes {
			p.push(x, note)
		}
		p.notes = nil
		for id, q := range p.questions {
			if q.waits() {
				q.asked = x
				p.questions[id] = q
				p.push(x, q.raw)
			}
		}
	}
	return nil
}

// staysOpen reports whether the request stays open until it is cancelled, as a listen request does. Such a request does not count as a
// call.
func (x *exchange) staysOpen() bool {
	return x.method == spec.MethodListen || x.method == spec.MethodEventsStream
}

// watch records the resources and events that the gateway follows with the request x. For these, the shared process must run even if no
// client calls it. The parameter begins is false when x ends.
func (p *process) watch(x *exchange, params json.RawMessage, begins bool) {
	uri, _ := jsonrpc.String(jsonrpc.Member(params, "uri"))
	key := x.method + " " + string(x.id)
	switch x.method {
	case spec.MethodSubscribe:
		p.watched[uri] = true
	case spec.MethodUnsubscribe:
		delete(p.watched, uri)
	case spec.MethodEventsStream:
		if delete(p.watched, key); begins {
			p.watched[key] = true
		}
	case spec.MethodListen:
		delete(p.watched, key)
		for range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(params, "notifications"), "resourceSubscriptions")) {
			if begins {
				p.watched[key] = true
			}
		}
	}
}

// remove forgets a request that has ended. The caller holds the lock.
func (p *process) remove(x *exchange) {
	if p.exchanges[string(x.id)] != x {
		return
	}
	delete(p.exchanges, string(x.id))
	if x.staysOpen() {
		p.watch(x, nil, false)
	} else {
		p.calls--
	}
	if p.holder != "" || !gatewayMethods[x.method] {
		p.used = time.Now()
	}
	p.moveQuestions(x)
	if p.retired && p.calls == 0 {
		p.endLocked("the configuration changed", false)
	}
}

// maxLate limits how many cancelled requests a process remembers, so that their late responses do not count as dropped messages.
const maxLate = 256

// close ends a request whose response is no longer read, and cancels it at the process. In a client's session, package gateway sends the
// cancellation instead.
func (p *process) close(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x.closed {
		return
	}
	x.closed = true
	p.discard(x)
	if p.listening == x {
		p.listening = nil
	}
	running := p.exchanges[string(x.id)] == x
	p.remove(x)
	if !running {
		return
	}
	if len(p.late) >= maxLate {
		clear(p.late)
	}
	p.late[string(x.id)] = true
	switch {
	case x.method == spec.MethodInitialize: // must not be cancelled
		if p.holder != "" {
			go p.stop("its session did not begin")
		}
	case p.holder == "":
		params := append(append([]byte(`{"requestId":`), x.id...), '}')
		p.reply(jsonrpc.AppendNotification(nil, spec.NoteCancelled, params))
	}
}

// listen opens the GET stream of the process, which replaces an earlier one.
func (p *process) listen(req *http.Request) *http.Response {
	x := &exchange{p: p, ctx: req.Context(), wake: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listening != nil {
		p.listening.end(io.EOF)
	}
	p.listening = x
	if p.isEnding() {
		x.end(io.EOF)
	}
	return stream(req, x)
}

// replaceToken replaces the progress token of a request by one that is unique in the process.
func (x *exchange) replaceToken(body []byte) []byte {
	params := jsonrpc.Member(body, "params")
	meta := jsonrpc.Member(params, "_meta")
	x.token = jsonrpc.Member(meta, "progressToken")
	if x.token == nil {
		return body
	}
	x.sent = jsonrpc.Quote("gw_" + string(bytes.Trim(x.id, `"`)))
	return jsonrpc.Replace(body, "params", jsonrpc.Replace(params, "_meta", jsonrpc.Replace(meta, "progressToken", x.sent)))
}

var errLong = errors.New("stdio: the answer is larger than 8 MiB")

// refuseLong handles a line that is longer than a message may be. The parameter ends has the beginning and the end of the line. If these
// contain the id of a running request, that request fails.
func (p *process) refuseLong(ends []byte) {
	p.drop(dropLong)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.exchanges {
		for _, form := range []string{`"id":%s,`, `"id":%s}`, `"id": %s,`, `"id": %s}`} {
			if bytes.Contains(ends, fmt.Appendf(nil, form, x.id)) {
				x.end(errLong)
				p.remove(x)
				return
			}
		}
	}
}
