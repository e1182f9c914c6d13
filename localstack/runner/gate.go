package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/test/awscount"
)

// runnerApp identifies the runner's own requests, i.e. the requests at the start and by the event source mappings. AWS also
// bills the latter.
const runnerApp = "runner"

// gate is a proxy between the functions and the emulators, which do not check permissions. It refuses requests that a
// function's policies do not allow, and counts the others.
type gate struct {
	stack *Stack

	mu       sync.RWMutex
	policies map[string]access.Policy   // by the function's logical id
	tables   map[string]tableName       // by name
	counts   map[string]awscount.Counts // by the sender's logical id
	denied   []string
	calls    map[Call]bool
}

type tableName struct {
	arn  string
	keys []string // the key attributes, the partition key first
}

// maxDenied is the maximum number of refusals that are kept.
const maxDenied = 100

// Requests returns the requests to AWS so far of each function, and of "runner" for the start and the event source
// mappings. It is empty with [Options.Direct]. It does not know calls and errors, and knows capacity units only if
// the emulator reports them.
func (s *Stack) Requests() map[string]awscount.Counts {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	out := map[string]awscount.Counts{}
	for app, counts := range s.gate.counts {
		out[app] = awscount.Counts{}
		for service, operations := range counts {
			out[app][service] = maps.Clone(operations)
		}
	}
	return out
}

// Denied returns the requests that functions sent although their policies do not allow it, at most the first 100.
func (s *Stack) Denied() []string {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	return slices.Clone(s.gate.denied)
}

// open starts the gate in front of each endpoint.
func (g *gate) open() error {
	for service, endpoint := range map[string]*string{
		"DynamoDB": &g.stack.endpoints.DynamoDB, "SQS": &g.stack.endpoints.SQS, "KMS": &g.stack.endpoints.KMS,
		"SSM": &g.stack.endpoints.SSM,
	} {
		if *endpoint == "" {
			continue
		}
		target, err := url.Parse(*endpoint)
		if err != nil {
			return err
		}
		at, err := g.stack.serve("127.0.0.1:0", g.proxy(service, target))
		if err != nil {
			return err
		}
		*endpoint = "http://" + at.String()
	}
	return nil
}

// maxRequest is the maximum size of a request body, which is DynamoDB's limit.
const maxRequest = 16 << 20

func (g *gate) proxy(service string, target *url.URL) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.DisableCompression = nil, true
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 200
	pass := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // the host that was signed
		},
		ModifyResponse: func(resp *http.Response) error {
			r := resp.Request
			_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			n := awscount.Count{Requests: 1, BytesOut: max(r.ContentLength, 0)}
			if service == "DynamoDB" {
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					return err
				}
				_ = resp.Body.Close()
				resp.Body = io.NopCloser(bytes.NewReader(body))
				if operation == "Query" && resp.StatusCode == http.StatusOK && !g.stack.opts.WholeQueries {
					resp.Body = io.NopCloser(bytes.NewReader(g.page(resp, body)))
				}
				n.Units = consumed(body)
				if operation == "Query" && resp.StatusCode == http.StatusOK {
					n.Units = max(n.Units, 1) // the emulator reports 0 for a consistent read of a missing item
				}
			}
			resp.Body = &meteredBody{ReadCloser: resp.Body, done: func(in int64) {
				n.BytesIn = in
				n.Chunks = max(1, (max(n.BytesOut, in)+64<<10-1)/(64<<10))
				g.add(application(r), service, operation, n)
			}}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway) // the SDK retries
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		app := application(r)
		if app != runnerApp {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
			if err != nil {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
				return
			}
			requests, err := access.Requests(r.Header.Get("X-Amz-Target"), body, g)
			if err != nil {
				g.refuse(w, app, err.Error())
				return
			}
			for _, want := range requests {
				if !g.allows(app, want) {
					g.refuse(w, app, describe(want))
					return
				}
			}
			switch service {
			case "DynamoDB":
				body = askForCapacity(body)
			case "SQS":
				body = traced(body, r.Header.Get(lambda.TraceHeader))
			}
			r.ContentLength = int64(len(body))
			r.Body = io.NopCloser(bytes.NewReader(body))
			if service == "DynamoDB" {
				var table struct{ TableName string }
				_ = json.Unmarshal(body, &table) // empty for a request to several tables
				r = r.WithContext(context.WithValue(r.Context(), tableOf{}, table.TableName))
			}
		}
		pass.ServeHTTP(w, r)
	})
}

// askForCapacity makes DynamoDB report the consumed capacity. This invalidates the signature, which no emulator
// verifies.
func askForCapacity(body []byte) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return body // the emulator reports what is wrong with it
	}
	members["ReturnConsumedCapacity"] = json.RawMessage(`"TOTAL"`)
	asked, err := json.Marshal(members)
	if err != nil {
		return body
	}
	return asked
}

// consumed returns the capacity units in a response, which has an object for an operation on one table and a list for
// others.
func consumed(body []byte) (units float64) {
	type capacity struct{ CapacityUnits float64 }
	var one struct{ ConsumedCapacity capacity }
	if json.Unmarshal(body, &one) == nil {
		return one.ConsumedCapacity.CapacityUnits
	}
	var many struct{ ConsumedCapacity []capacity }
	if json.Unmarshal(body, &many) == nil {
		for _, c := range many.ConsumedCapacity {
			units += c.CapacityUnits
		}
	}
	return units
}

func describe(r access.Request) string {
	text := fmt.Sprintf("is not authorized to perform: %s on resource: %q", r.Action, r.Resource)
	if len(r.LeadingKeys) > 0 {
		text += fmt.Sprintf(" with partition keys %q", r.LeadingKeys[:min(len(r.LeadingKeys), 3)])
	}
	return text
}

func (g *gate) allows(app string, r access.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	sids := g.policies[app].Allowing(r)
	for _, sid := range sids {
		g.calls[Call{Function: app, Statement: sid, Action: r.Action, Resource: g.stack.logical(r.Resource)}] = true
	}
	return len(sids) > 0
}

// refuse sends the error that the service would send, and records the refusal.
func (g *gate) refuse(w http.ResponseWriter, app, text string) {
	text = app + " " + text
	g.mu.Lock()
	if len(g.denied) < maxDenied {
		g.denied = append(g.denied, text)
	}
	g.mu.Unlock()
	g.stack.opts.Log.Error("a request to AWS was refused", "reason", text)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amzn-Errortype", "AccessDeniedException")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{ // fails if the function has disconnected
		"__type": "com.amazon.coral.service#AccessDeniedException", "message": text,
	})
}

// application returns the sender of a request. The session token in a function's credentials is its logical id.
func application(r *http.Request) string { return r.Header.Get("X-Amz-Security-Token") }

func (g *gate) add(app, service, operation string, n awscount.Count) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.counts[app] == nil {
		g.counts[app] = awscount.Counts{}
	}
	if g.counts[app][service] == nil {
		g.counts[app][service] = map[string]awscount.Count{}
	}
	sum := g.counts[app][service][operation]
	sum.Requests += n.Requests
	sum.BytesOut += n.BytesOut
	sum.BytesIn += n.BytesIn
	sum.Chunks += n.Chunks
	sum.Units += n.Units
	g.counts[app][service][operation] = sum
}

// grant sets the policy of a function.
func (g *gate) grant(id string, p access.Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policies[id] = p
}

// know registers a table.
func (g *gate) know(name string, t tableName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tables[name] = t
}

// Table implements [access.Names].
func (g *gate) Table(name string) (arn, key string) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	t := g.tables[name]
	if len(t.keys) > 0 {
		key = t.keys[0]
	}
	return t.arn, key
}

// Queue implements [access.Names].
func (g *gate) Queue(url string) string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, q := range g.stack.queues {
		if q.url == url {
			return q.arn
		}
	}
	return ""
}

// Key implements [access.Names]. Functions use the ARNs of keys.
func (g *gate) Key(id string) string { return id }

// Parameter implements [access.Names].
func (g *gate) Parameter(name string) string {
	return fmt.Sprintf("arn:aws:ssm:%s:%s:parameter%s", g.stack.opts.Region, account, name)
}

// meteredBody reports its length once, when it is closed.
type meteredBody struct {
	io.ReadCloser
	n    int64
	once sync.Once
	done func(int64)
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

func (b *meteredBody) Close() error {
	b.once.Do(func() { b.done(b.n) })
	return b.ReadCloser.Close()
}
