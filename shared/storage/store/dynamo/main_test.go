package dynamo

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/awscount"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) {
	// Random histories take a request per step; 100 of them on two emulators
	// would take longer than all else. -rapid.checks asks for another number.
	flag.Set("rapid.checks", "30")
	flag.Set("test.parallel", "8") // as -parallel does
	flag.Parse()
	os.Exit(awslocal.Main(m))
}

var created atomic.Int64

// tables returns names that no other test uses and makes the tables.
func tables(t testing.TB, client *dynamodb.Client) func(store.Table) string {
	t.Helper()
	prefix := fmt.Sprintf("t%d-%d-", time.Now().UnixNano(), created.Add(1))
	name := func(table store.Table) string { return prefix + string(table) }
	expect.OK(t, awslocal.CreateTables(t.Context(), client, name))
	return name
}

// bench is a store under test with everything about it that can be turned.
type bench struct {
	*DB
	clock   *clock
	wire    *wire
	counter *awscount.Counter
	client  *dynamodb.Client
	name    func(store.Table) string
}

// open returns a store in DynamoDB Local, with tables of its own. Tests wait for the emulator, so they do that together.
func open(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	cfg := awslocal.Config(awslocal.Start(t, awslocal.DynamoDB).DynamoDB)
	b := &bench{clock: &clock{now: time.Now()}, wire: &wire{client: cfg.HTTPClient}, counter: &awscount.Counter{}}
	b.name = tables(t, dynamodb.NewFromConfig(cfg))
	b.counter.Attach(&cfg)
	b.client = dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) { o.HTTPClient = b.wire })
	b.DB = New(b.client, b.name)
	b.DB.now = b.clock.Now
	return b
}

// requests runs f and returns the requests that it made, for example "PutItem PutItem".
func (b *bench) requests(f func()) string {
	before := b.counter.Snapshot()
	f()
	var sent []string
	for operation, count := range b.counter.Snapshot().Since(before)["DynamoDB"] {
		for range count.Requests {
			sent = append(sent, operation)
		}
	}
	slices.Sort(sent)
	return strings.Join(sent, " ")
}

// clock is turned by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// wire is the network between the SDK and DynamoDB, with its faults.
type wire struct {
	client aws.HTTPClient
	mu     sync.Mutex
	faults []wireFault
}

// wireFault happens to the next request of its operation, once. It gets the
// request's body and a function that lets the request through.
type wireFault struct {
	operation string
	happen    func(body []byte, through func() (*http.Response, error)) (*http.Response, error)
}

// lose lets a request through and loses the answer.
func (w *wire) lose(operation string) {
	w.add(wireFault{operation, func(_ []byte, through func() (*http.Response, error)) (*http.Response, error) {
		resp, err := through()
		if err != nil {
			return nil, err
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return nil, &net{"connection reset by peer"}
	}})
}

// net is a network error as the SDK repeats it.
type net struct{ text string }

func (n *net) Error() string   { return n.text }
func (n *net) Timeout() bool   { return true }
func (n *net) Temporary() bool { return true }

// answer answers a request instead of DynamoDB.
func (w *wire) answer(operation string, status int, body string) {
	w.add(wireFault{operation, func([]byte, func() (*http.Response, error)) (*http.Response, error) {
		return reply(status, body), nil
	}})
}

func (w *wire) add(f wireFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, f)
}

func (w *wire) left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.faults)
}

func (w *wire) Do(req *http.Request) (*http.Response, error) {
	through := func() (*http.Response, error) { return w.client.Do(req) }
	w.mu.Lock()
	i := slices.IndexFunc(w.faults, func(f wireFault) bool {
		return strings.HasSuffix(req.Header.Get("X-Amz-Target"), "."+f.operation)
	})
	if i < 0 {
		w.mu.Unlock()
		return through()
	}
	f := w.faults[i]
	w.faults = slices.Delete(w.faults, i, i+1)
	w.mu.Unlock()

	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	return f.happen(body, through)
}

func reply(status int, body string) *http.Response {
	return &http.Response{
		StatusCode:    status,
		Header:        http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body:          io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)),
	}
}

func TestStoreOnDynamoDBLocal(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.DynamoDB).DynamoDB)
}

// The local AWS mode runs on such an emulator, so the store must work there too.
func TestStoreOnMiniStack(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.MiniStack).MiniStack)
}

func suite(t *testing.T, endpoint string) {
	client := dynamodb.NewFromConfig(awslocal.Config(endpoint))
	db := New(client, tables(t, client))
	storetest.Run(t, func(*testing.T) store.DB { return db })
}
