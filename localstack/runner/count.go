package runner

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"mcpevents/shared/awsx"
)

// runnerApp marks the runner's own requests: those of the mappings, which AWS
// bills too.
const runnerApp = "mappings"

// counter counts requests on their way to the emulators.
type counter struct {
	mu     sync.Mutex
	counts map[string]awsx.Counts
}

// Requests returns what each function, and "mappings" for the event source
// mappings and the start, asked of AWS so far. It is empty without [Options.Count].
// Calls, errors and capacity units are not seen from here.
func (s *Stack) Requests() map[string]awsx.Counts {
	out := map[string]awsx.Counts{}
	if s.counter == nil {
		return out
	}
	s.counter.mu.Lock()
	defer s.counter.mu.Unlock()
	for app, counts := range s.counter.counts {
		out[app] = awsx.Counts{}
		for service, operations := range counts {
			out[app][service] = map[string]awsx.Count{}
			for operation, n := range operations {
				out[app][service][operation] = n
			}
		}
	}
	return out
}

// count puts a counting proxy in front of each endpoint.
func (s *Stack) count() error {
	s.counter = &counter{counts: map[string]awsx.Counts{}}
	for service, endpoint := range map[string]*string{
		"DynamoDB": &s.endpoints.DynamoDB, "SQS": &s.endpoints.SQS, "KMS": &s.endpoints.KMS,
	} {
		if *endpoint == "" {
			continue
		}
		target, err := url.Parse(*endpoint)
		if err != nil {
			return err
		}
		at, err := s.serve("127.0.0.1:0", s.counter.proxy(service, target))
		if err != nil {
			return err
		}
		*endpoint = "http://" + at.String()
	}
	return nil
}

// application is how the SDK shows AWS_SDK_UA_APP_ID in User-Agent.
var application = regexp.MustCompile(`\bapp/([A-Za-z0-9-]+)`)

func (c *counter) proxy(service string, target *url.URL) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.DisableCompression = nil, true
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 200
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // as it was signed
		},
		ModifyResponse: func(resp *http.Response) error {
			r := resp.Request
			app := "unknown"
			if m := application.FindStringSubmatch(r.UserAgent()); m != nil {
				app = m[1]
			}
			_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			n := awsx.Count{Requests: 1, BytesOut: max(r.ContentLength, 0)}
			resp.Body = &meteredBody{ReadCloser: resp.Body, done: func(in int64) {
				n.BytesIn = in
				n.Chunks = max(1, (max(n.BytesOut, in)+64<<10-1)/(64<<10))
				c.add(app, service, operation, n)
			}}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway) // the SDK tries again
		},
	}
}

func (c *counter) add(app, service, operation string, n awsx.Count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[app] == nil {
		c.counts[app] = awsx.Counts{}
	}
	if c.counts[app][service] == nil {
		c.counts[app][service] = map[string]awsx.Count{}
	}
	sum := c.counts[app][service][operation]
	sum.Requests += n.Requests
	sum.BytesOut += n.BytesOut
	sum.BytesIn += n.BytesIn
	sum.Chunks += n.Chunks
	c.counts[app][service][operation] = sum
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
