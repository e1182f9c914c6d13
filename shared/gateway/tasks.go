package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A backend of 2026-07-28 may answer a tools/call with a task, and the client then asks about the task by its id (SEP-2663). To the
// backend, all clients of the gateway may look like one caller, so an id might give access to another client's task. So the gateway gives
// the client another id, an encrypted text with the backend and its id for the task. Any instance can decrypt it without the store.
//
// The session-based revisions do not have the extension: "requests proceed as if the client had declared no task capability at all"
// (SEP-2663, Backward Compatibility). The tasks of 2025-11-25 are another protocol, which the gateway does not offer.

// maxOwnTask limits the length of a backend's task id, in bytes of JSON.
const maxOwnTask = 1 << 10

var errNoTask = fault.New(fault.Invalid, "there is no task with this id")

// findEntry returns the tool, prompt, resource or task that a call names. For a task it also returns the backend's id of the task.
func (g *Gateway) findEntry(ctx context.Context, c api.Call) (backends.Entry, json.RawMessage, error) {
	if c.Kind != api.Tasks {
		e, err := g.Find(ctx, c.Client, c.Kind, c.Name)
		return e, nil, err
	}
	if !translate.DeclaresTasks(c.Capabilities) {
		return backends.Entry{}, nil, translate.MissingTasks()
	}
	v, own := g.findTask(ctx, c.Client, c.Name)
	if v == nil {
		return backends.Entry{}, nil, errNoTask
	}
	name, _ := jsonrpc.String(own)
	return backends.Entry{Entry: api.Entry{Name: c.Name, Backend: v.Backend().Name, Own: name}, View: v}, own, nil
}

// findTask returns the client's view of the backend that has a task, and the backend's id of the task, given the id that the client uses.
func (g *Gateway) findTask(ctx context.Context, c api.Client, id string) (*backends.View, json.RawMessage) {
	server, own, ok := g.tasks.Open(c.Principal, id)
	if !ok {
		return nil, nil
	}
	return g.FindView(ctx, c, server), own
}

func checkTaskID(own json.RawMessage) error {
	text, ok := jsonrpc.String(own)
	if !ok || text == "" || len(own) > maxOwnTask {
		return fmt.Errorf("gateway: the task's id is not a string of 1 to %d bytes", maxOwnTask)
	}
	return nil
}

// adaptTask replaces a backend's task id in a response by the id for the client. It refuses a task that the client cannot use.
func (x *exchange) adaptTask(m *upstream.Message) error {
	kind, _ := jsonrpc.String(jsonrpc.Member(m.Result, "resultType"))
	id := x.call.Name
	switch {
	case m.Result == nil:
		return nil
	case x.task != nil:
		if jsonrpc.Member(m.Result, "taskId") == nil {
			return nil // the backend only acknowledges a request about a task, for example its cancellation
		}
	case kind != "task":
		return nil
	case x.call.Method != spec.MethodToolsCall:
		return x.callError(errors.New("gateway: the backend answers with a task, which the method does not allow"))
	case !x.call.Version.Stateless():
		e := translate.MissingTasks()
		e.Code = jsonrpc.InvalidRequest
		return e
	case !translate.DeclaresTasks(x.call.Capabilities):
		return translate.MissingTasks()
	default:
		own := jsonrpc.Member(m.Result, "taskId")
		if err := checkTaskID(own); err != nil {
			return x.callError(err)
		}
		id = x.gateway.tasks.Seal(x.call.Principal, x.backend().ServerID(), own)
	}
	m.Result = jsonrpc.Replace(m.Result, "taskId", jsonrpc.Quote(id))
	m.Raw = jsonrpc.Replace(m.Raw, "result", m.Result)
	return nil
}

// relateTask replaces the id of the related task in a message's _meta by the id for the client. If the tasks extension is not in use, the
// id stays as it is.
func (x *exchange) relateTask(m upstream.Message) upstream.Message {
	if !bytes.Contains(m.Raw, []byte(spec.MetaRelatedTask)) || !x.with.Version.Stateless() || !x.call.Version.Stateless() ||
		!translate.DeclaresTasks(x.call.Capabilities) {
		return m
	}
	if m.Result != nil {
		m.Result = x.gateway.relateTask(x.call.Principal, x.backend(), m.Result)
		m.Raw = jsonrpc.Replace(m.Raw, "result", m.Result)
	} else if params := jsonrpc.Member(m.Raw, "params"); params != nil {
		m.Raw = jsonrpc.Replace(m.Raw, "params", x.gateway.relateTask(x.call.Principal, x.backend(), params))
	}
	return m
}

func (g *Gateway) relateTask(p auth.Principal, b *backends.Backend, value json.RawMessage) json.RawMessage {
	meta := jsonrpc.Member(value, "_meta")
	related := jsonrpc.Member(meta, spec.MetaRelatedTask)
	own := jsonrpc.Member(related, "taskId")
	if checkTaskID(own) != nil {
		return value
	}
	related = jsonrpc.Replace(related, "taskId", jsonrpc.Quote(g.tasks.Seal(p, b.ServerID(), own)))
	return jsonrpc.Replace(value, "_meta", jsonrpc.Replace(meta, spec.MetaRelatedTask, related))
}

// A client's listen request may name tasks. While it is open, the gateway keeps its own listen request open at each backend that has one
// of these tasks, with the credentials of the client's calls. Package relay cannot do that, because it uses the operator's credentials.

const (
	// ackTime limits how long a client's listen request waits for the backends' acknowledgments. After that, the gateway assumes that the
	// backends will acknowledge.
	ackTime = 2 * time.Second
	// After a listen request breaks, the gateway waits for leastPause before the next one, then longer each time, up to mostPause.
	leastPause, mostPause = time.Second, 30 * time.Second
	maxStates             = 16 // task states that wait for a slow client before the gateway stops reading from the backends
)

const (
	dropTask      = "it is about a task of which no client asked to be notified"
	dropTaskInput = "it asks for input that the client does not support"
)

// taskListen keeps a listen request for a client's tasks open at one backend.
type taskListen struct {
	gateway *Gateway
	client  api.Client
	view    *backends.View
	server  string            // the backend's ServerID
	ids     map[string]string // the tasks' ids at the gateway, by their ids at the backend
	own     []json.RawMessage // the tasks' ids at the backend
	states  chan<- *api.Task

	acked   chan struct{}   // is closed when the first listen is acknowledged or refused
	honored map[string]bool // the tasks of which the backend sends notifications, by their ids at the backend
}

// WatchTasks sends the states of the tasks with the given ids to the channel states until ctx ends, and closes the channel after the last
// state. The result watched has the ids of the tasks whose backends send notifications.
func (g *Gateway) WatchTasks(ctx context.Context, c api.Client, ids []string) (watched []string, states <-chan *api.Task, err error) {
	if !translate.DeclaresTasks(c.Capabilities) {
		return nil, nil, translate.MissingTasks()
	}
	out := make(chan *api.Task, maxStates)
	listens := map[string]*taskListen{}
	byID := map[string]*taskListen{} // by the task's id at the gateway
	for _, id := range ids {
		v, own := g.findTask(ctx, c, id)
		if v == nil || byID[id] != nil {
			continue
		}
		server := v.Backend().ServerID()
		l := listens[server]
		if l == nil {
			l = &taskListen{gateway: g, client: c, view: v, server: server, ids: map[string]string{}, states: out, acked: make(chan struct{})}
			listens[server] = l
		}
		name, _ := jsonrpc.String(own)
		l.ids[name], l.own, byID[id] = id, append(l.own, own), l
	}
	var running sync.WaitGroup
	for _, l := range listens {
		running.Go(func() { l.run(ctx) })
	}
	go func() {
		running.Wait()
		close(out)
	}()
	late := time.NewTimer(ackTime)
	defer late.Stop()
	for _, l := range listens {
		select {
		case <-l.acked:
		case <-late.C:
			late.Reset(0) // let the timer fire again immediately, because the time limit applies to all backends together
		case <-ctx.Done():
			return nil, out, nil
		}
	}
	for _, id := range ids {
		if l := byID[id]; l != nil && l.isHonored(id) && !slices.Contains(watched, id) {
			watched = append(watched, id)
		}
	}
	return watched, out, nil
}

// isHonored reports whether the backend sends notifications about a task. Before the acknowledgment, isHonored assumes that it does.
func (l *taskListen) isHonored(id string) bool {
	select {
	case <-l.acked:
	default:
		return true
	}
	for own, ours := range l.ids {
		if ours == id {
			return l.honored[own]
		}
	}
	return false
}

func (l *taskListen) run(ctx context.Context) {
	var ack sync.Once
	acknowledge := func(honored map[string]bool) {
		ack.Do(func() {
			l.honored = honored
			close(l.acked)
		})
	}
	for wait, again := leastPause, false; ; wait, again = min(2*wait, mostPause), true {
		began := time.Now()
		err := l.listen(ctx, acknowledge, again)
		if ctx.Err() != nil {
			return
		}
		if isPermanent(err) {
			acknowledge(nil) // has no effect if an earlier listen was acknowledged
			l.gateway.options.Log.InfoContext(ctx, "backend does not notify of tasks", "backend", l.view.Backend().Name, "error", err)
			return
		}
		if time.Since(began) > mostPause {
			wait = leastPause
		}
		if periodic.Sleep(ctx, wait) != nil {
			return
		}
	}
}

var errUnwatched = errors.New("gateway: the backend does not have the tasks extension, or the caller may no longer use it")

// isPermanent reports whether it is useless to repeat a subscriptions/listen request that failed with err, because it would fail again.
func isPermanent(err error) bool {
	if status := upstream.StatusOf(err); status != 0 {
		return status < 500 && status != http.StatusTooManyRequests && status != http.StatusRequestTimeout
	}
	return errors.Is(err, upstream.ErrAnswer) || errors.Is(err, errUnwatched) || fault.Is(err, fault.Forbidden) || fault.Is(err, fault.Unauthenticated)
}

// params returns params that contain only a _meta with the client's name and capabilities. If the client's name is unknown, the _meta has
// the gateway's name. The callers add the members of subscriptions/listen or tasks/get.
func (l *taskListen) params(version spec.Version) json.RawMessage {
	info := l.client.Info
	if len(info) == 0 {
		info = l.gateway.options.Server
	}
	return translate.ToStateless(json.RawMessage(`{}`), version, translate.Client{Info: info, Capabilities: l.client.Capabilities})
}

// listen sends a listen request and reads its stream to the end. It calls acknowledge with the tasks that the backend's acknowledgment
// names. If again is set, it also sends the client the tasks' current states, because they may have changed while no stream was open.
func (l *taskListen) listen(ctx context.Context, acknowledge func(map[string]bool), again bool) error {
	info, err := l.view.LoadInfo(ctx)
	switch {
	case info == nil:
		return err
	case !info.Version.Stateless() || !info.Tasks || !l.mayUseBackend(ctx):
		return errUnwatched
	}
	filter := jsonrpc.Encode(map[string]any{"taskIds": l.own})
	x, err := l.view.Backend().ClientFor(l.client.Token).Post(ctx, upstream.Request{
		Body:    jsonrpc.AppendRequest(nil, upstream.FreshID(), spec.MethodListen, jsonrpc.Insert(l.params(info.Version), "notifications", filter)),
		Version: info.Version, Header: http.Header{spec.HeaderMethod: {spec.MethodListen}},
	})
	if err != nil {
		return err
	}
	defer x.Close()
	for acked := false; ; {
		m, err := x.Next(ctx)
		switch {
		case err != nil:
			return err
		case m.Response() && m.Error != nil && !acked:
			return upstream.ErrAnswer
		case m.Response():
			return nil
		case !l.mayUseBackend(ctx):
			return errUnwatched
		case m.Method == spec.NoteAcknowledged:
			acked = true
			if acknowledge(readHonored(m)); again {
				l.poll(ctx, info.Version)
			}
		case m.Method == spec.NoteTasks:
			l.send(ctx, jsonrpc.Member(m.WithoutOwn().Raw, "params"))
		default:
			l.view.Backend().CountDrop(ctx, dropOutOfPlace)
		}
	}
}

func (l *taskListen) mayUseBackend(ctx context.Context) bool {
	return l.gateway.FindByServer(ctx, l.client.Principal, l.server) != nil
}

// readHonored returns the tasks about which the backend will send notifications, from its acknowledgment of a listen request. The keys
// are the tasks' ids at the backend.
func readHonored(m upstream.Message) map[string]bool {
	honored := map[string]bool{}
	for raw := range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(jsonrpc.Member(m.Raw, "params"), "notifications"), "taskIds")) {
		if id, ok := jsonrpc.String(raw); ok {
			honored[id] = true
		}
	}
	return honored
}

// send sends a task's state to the client, after it has replaced the task's id. If the client is slow, send waits.
func (l *taskListen) send(ctx context.Context, state json.RawMessage) {
	own, _ := jsonrpc.String(jsonrpc.Member(state, "taskId"))
	id, ok := l.ids[own]
	switch {
	case !ok:
		l.view.Backend().CountDrop(ctx, dropTask)
		return
	case len(translate.ListMissing(l.client.Capabilities, state)) > 0:
		l.view.Backend().CountDrop(ctx, dropTaskInput)
		return
	}
	select {
	case l.states <- &api.Task{Backend: l.view.Backend().Name, Params: jsonrpc.Replace(state, "taskId", jsonrpc.Quote(id))}:
	case <-ctx.Done():
	}
}

func (l *taskListen) poll(ctx context.Context, version spec.Version) {
	for _, own := range l.own {
		name, _ := jsonrpc.String(own)
		result, err := l.view.Backend().ClientFor(l.client.Token).Ask(ctx, upstream.Request{
			Version: version, Header: http.Header{spec.HeaderName: {spec.EncodeHeader(name)}},
		}, spec.MethodTasksGet, jsonrpc.Insert(l.params(version), "taskId", own))
		if err != nil || jsonrpc.Member(result, "taskId") == nil {
			continue // the client learns the state when it asks for it
		}
		result, _ = translate.WithoutOwn(result)
		l.send(ctx, jsonrpc.Without(result, func(name string) bool { return name == "resultType" }))
	}
}
