package backend

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// rogue is the misbehaving backend. Written by hand, for no SDK would let it be
// one. It speaks session-based revisions and the stateless one: the header of a request decides.
//
// Each of its tools is a way to misbehave (see behaviours), so that a test chooses by
// the name it calls. What happens outside of calls is chosen by the URL:
//
//	/mcp?stream=drop|garbage|foreign  the GET stream, and subscriptions/listen
//
// Arguments that every tool takes: "mark" comes back in every well-formed message
// of the call, so that a client can tell its own from another's; "bytes" and
// "count" say how large and how many.
type rogue struct {
	seen *observer
	turn atomic.Int64 // makes ids that no other call uses

	mu       sync.Mutex
	sessions map[string]bool
	waiting  map[string]chan json.RawMessage // by session and id, as it was sent
}

func newRogue(seen *observer) *rogue {
	return &rogue{seen: seen, sessions: map[string]bool{}, waiting: map[string]chan json.RawMessage{}}
}

// message is a JSON-RPC message whose members keep their bytes.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// maxBody is the largest body that is read.
const maxBody = 64 << 20

func (g *rogue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get("Mcp-Session-Id")
	isStateless := r.Header.Get("Mcp-Protocol-Version") >= v20260728
	switch r.Method {
	case http.MethodGet:
		g.stream(&exchange{rogue: g, w: w, r: r, session: session})
		return
	case http.MethodDelete:
		g.forget(session)
		return
	case http.MethodPost:
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	x := &exchange{rogue: g, w: w, r: r, session: session, stateless: isStateless, body: body, message: m}
	switch {
	case m.Method == "initialize":
		x.session = rand.Text()
		g.mu.Lock()
		g.sessions[x.session] = true
		g.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", x.session)
	case !isStateless && !g.known(session):
		x.json(http.StatusNotFound, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no such session"}}`)
		return
	}
	if m.Method == "" {
		g.answered(w, session, m.ID, body)
		return
	}
	g.seen.add(requests, m.Method, 1)
	if len(m.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	g.request(x)
}

func (g *rogue) known(session string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sessions[session]
}

func (g *rogue) forget(session string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, session)
}

// answered receives the client's answer to our request.
func (g *rogue) answered(w http.ResponseWriter, session string, id json.RawMessage, body []byte) {
	g.mu.Lock()
	ch := g.waiting[session+" "+string(id)]
	g.mu.Unlock()
	if ch == nil {
		g.seen.add(requests, "answers to no question", 1)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	select {
	case ch <- bytes.Clone(body):
	default: // the second answer to one question
		g.seen.add(requests, "second answers", 1)
	}
	w.WriteHeader(http.StatusAccepted)
}

const (
	capabilities = `{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true,"listChanged":true}}`
	serverInfo   = `{"name":"rogue","version":"1"}`
)

func (g *rogue) request(x *exchange) {
	switch x.Method {
	case "initialize":
		var p struct{ ProtocolVersion string }
		_ = json.Unmarshal(x.Params, &p)
		x.result(fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":%s}`, p.ProtocolVersion, capabilities, serverInfo))
	case "server/discover":
		x.result(fmt.Sprintf(`{"resultType":"complete","supportedVersions":[%q],"capabilities":%s,"ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":%s}}`,
			v20260728, capabilities, serverInfo))
	case "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		x.result(`{}`)
	case "tools/list":
		g.list(x)
	case "resources/list":
		x.result(`{"resources":[],"ttlMs":0,"cacheScope":"private","resultType":"complete"}`)
	case "resources/templates/list":
		x.result(`{"resourceTemplates":[],"ttlMs":0,"cacheScope":"private","resultType":"complete"}`)
	case "subscriptions/listen":
		g.stream(x)
	case "tools/call":
		g.call(x)
	default:
		x.error(-32601, "unknown method")
	}
}

func (g *rogue) call(x *exchange) {
	var p struct {
		Name      string
		Arguments struct {
			Mark         string
			Bytes, Count int
		}
		Meta struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(x.Params, &p) // what does not fit is left out
	x.mark, x.bytes, x.count, x.token = p.Arguments.Mark, p.Arguments.Bytes, p.Arguments.Count, p.Meta.Token
	b, ok := behaviours[p.Name]
	if !ok {
		x.error(-32602, "unknown tool")
		return
	}
	g.seen.add(calls, p.Name, 1)
	defer func() {
		if x.r.Context().Err() != nil {
			g.seen.add(cancelled, p.Name, 1)
		}
	}()
	b.do(x)
}

// list answers tools/list.
func (g *rogue) list(x *exchange) {
	type tool struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	var tools []tool
	for _, name := range slices.Sorted(maps.Keys(behaviours)) {
		tools = append(tools, tool{Name: name, Description: behaviours[name].description, InputSchema: json.RawMessage(rogueSchema)})
	}
	b, err := json.Marshal(tools)
	if err != nil {
		panic(err) // it holds strings only
	}
	x.result(fmt.Sprintf(`{"tools":%s,"ttlMs":0,"cacheScope":"private","resultType":"complete"}`, b))
}

const rogueSchema = `{"type":"object","properties":{"mark":{"type":"string"},"bytes":{"type":"integer"},"count":{"type":"integer"}}}`

// stream serves the notification stream of any revision.
func (g *rogue) stream(x *exchange) {
	tag := `{}`
	if x.Method != "" {
		g.seen.open(listens, 1)
		defer g.seen.open(listens, -1)
		tag = fmt.Sprintf(`{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}`, x.ID)
		x.event(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"toolsListChanged":true,"resourcesListChanged":true}}}`, x.ID))
	}
	changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":` + tag + `}`
	x.begin()
	switch x.r.URL.Query().Get("stream") {
	case "drop":
		x.event(changed)
		x.write("data: {\"jsonrpc\":\"2.0\",\"meth")
		x.drop()
	case "garbage":
		for _, bad := range malformed {
			x.event(bad)
		}
		x.event(changed)
	case "foreign": // what belongs to no stream of notifications
		x.event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"nobody's"}}`)
		x.event(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"nobody's"}]}}`)
		x.event(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`)
		x.event(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://never-asked-for"}}`)
		x.event(changed)
	}
	x.hang()
}

// malformed are messages that are not JSON-RPC, or not of this protocol.
var malformed = []string{
	`{"jsonrpc":"2.0","method":`,
	`null`, `17`, `"text"`, `[]`, `{}`,
	`[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}]`,
	`{"jsonrpc":"1.0","method":"notifications/tools/list_changed"}`,
	`{"jsonrpc":"2.0","method":17}`,
	`{"jsonrpc":"2.0","method":"notifications/unheard_of","params":{}}`,
	`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":17}}`,
	`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":[]}`,
	"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"\xff\xfe\"}}",
	`{"jsonrpc":"2.0","id":{"an":"object"},"method":"ping"}`,
	`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"both"}}`,
}
