// Package awscount counts the requests of AWS clients, for benchmarks and for tests that promise a number of requests.
package awscount

import (
	"context"
	"encoding/json"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Count holds the figures of one operation of a service.
type Count struct {
	// Calls counts the client's calls, Requests their requests on the wire including retries, and Errors the failed calls.
	Calls    int64 `json:"calls"`
	Requests int64 `json:"requests"`
	Errors   int64 `json:"errors,omitempty"`
	// BytesOut and BytesIn are the sizes of the bodies.
	BytesOut int64 `json:"bytesOut"`
	BytesIn  int64 `json:"bytesIn"`
	// Chunks counts begun 64 KiB of the request or the response body, whichever is larger. SQS bills these.
	Chunks int64 `json:"chunks"`
	// Units counts DynamoDB's read or write units, only with [Counter.Capacity].
	Units float64 `json:"units,omitempty"`
}

func (c *Count) add(d Count) {
	c.Calls += d.Calls
	c.Requests += d.Requests
	c.Errors += d.Errors
	c.BytesOut += d.BytesOut
	c.BytesIn += d.BytesIn
	c.Chunks += d.Chunks
	c.Units += d.Units
}

// Counts holds the counts by service ("DynamoDB", "SQS") and operation ("PutItem").
type Counts map[string]map[string]Count

// Requests returns the number of requests on the wire to all services.
func (c Counts) Requests() (n int64) {
	for _, operations := range c {
		for _, count := range operations {
			n += count.Requests
		}
	}
	return n
}

// Since returns the difference to an earlier snapshot.
func (c Counts) Since(before Counts) Counts {
	diff := Counts{}
	for service, operations := range c {
		for operation, count := range operations {
			b := before[service][operation]
			count.add(Count{-b.Calls, -b.Requests, -b.Errors, -b.BytesOut, -b.BytesIn, -b.Chunks, -b.Units})
			if count != (Count{}) {
				diff.at(service)[operation] = count
			}
		}
	}
	return diff
}

func (c Counts) at(service string) map[string]Count {
	if c[service] == nil {
		c[service] = map[string]Count{}
	}
	return c[service]
}

// Counter counts the requests of AWS clients. The zero value is ready, and it is safe for concurrent use.
type Counter struct {
	// Capacity asks DynamoDB for the units of every request, which changes the requests. Set it before [Counter.Attach].
	Capacity bool

	mu     sync.Mutex
	counts Counts
}

// Attach counts the requests of the clients that are built from cfg afterwards. Clients of several configurations may
// share a counter.
func (c *Counter) Attach(cfg *aws.Config) {
	cfg.APIOptions = append(cfg.APIOptions[:len(cfg.APIOptions):len(cfg.APIOptions)], c.register)
}

// Snapshot returns a copy of the counts so far.
func (c *Counter) Snapshot() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied := Counts{}
	for service, operations := range c.counts {
		for operation, count := range operations {
			copied.at(service)[operation] = count
		}
	}
	return copied
}

// MarshalJSON returns the snapshot as {"DynamoDB":{"PutItem":{"calls":1,…}}}.
func (c *Counter) MarshalJSON() ([]byte, error) { return json.Marshal(c.Snapshot()) }

func (c *Counter) add(ctx context.Context, d Count) {
	service, operation := awsmiddleware.GetServiceID(ctx), awsmiddleware.GetOperationName(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = Counts{}
	}
	operations := c.counts.at(service)
	count := operations[operation]
	count.add(d)
	operations[operation] = count
}

func (c *Counter) register(stack *middleware.Stack) error {
	calls := middleware.InitializeMiddlewareFunc("mcpevents.calls", c.call)
	if err := stack.Initialize.Add(calls, middleware.After); err != nil {
		return err
	}
	// The last middleware of this step is closest to the wire and runs for every attempt.
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("mcpevents.requests", c.request), middleware.After)
}

func (c *Counter) call(
	ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
) (middleware.InitializeOutput, middleware.Metadata, error) {
	if c.Capacity {
		askCapacity(in.Parameters)
	}
	out, meta, err := next.HandleInitialize(ctx, in)
	count := Count{Calls: 1}
	if err != nil {
		count.Errors = 1
	} else if c.Capacity {
		count.Units = capacity(out.Result)
	}
	c.add(ctx, count)
	return out, meta, err
}

func (c *Counter) request(
	ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
) (middleware.DeserializeOutput, middleware.Metadata, error) {
	count := Count{Requests: 1}
	if req, ok := in.Request.(*smithyhttp.Request); ok && req.ContentLength > 0 {
		count.BytesOut = req.ContentLength
	}
	out, meta, err := next.HandleDeserialize(ctx, in)
	resp, ok := out.RawResponse.(*smithyhttp.Response)
	if !ok || resp.Body == nil {
		count.Chunks = chunks(count.BytesOut)
		c.add(ctx, count)
		return out, meta, err
	}
	// The body is counted while it is read, because its length is not always announced.
	resp.Body = &countedBody{ReadCloser: resp.Body, done: func(n int64) {
		count.BytesIn = n
		count.Chunks = chunks(max(count.BytesOut, n))
		c.add(ctx, count)
	}}
	return out, meta, err
}

// chunks returns the number of begun 64 KiB in n bytes, at least one.
func chunks(n int64) int64 { return max(1, (n+64<<10-1)/(64<<10)) }

// countedBody reports its length once, when it is closed.
type countedBody struct {
	io.ReadCloser
	n      int64
	closed atomic.Bool
	done   func(int64)
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

func (b *countedBody) Close() error {
	if !b.closed.Swap(true) {
		b.done(b.n)
	}
	return b.ReadCloser.Close()
}

// askCapacity sets ReturnConsumedCapacity if the request has such a member.
func askCapacity(params any) {
	v := reflect.ValueOf(params)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return
	}
	if f := v.Elem().FieldByName("ReturnConsumedCapacity"); f.IsValid() && f.Kind() == reflect.String && f.String() == "" {
		f.SetString("TOTAL")
	}
}

// capacity returns the sum of the units in a response.
func capacity(result any) (units float64) {
	v := reflect.Indirect(reflect.ValueOf(result))
	if v.Kind() != reflect.Struct {
		return 0
	}
	f := reflect.Indirect(v.FieldByName("ConsumedCapacity"))
	one := func(v reflect.Value) {
		if total, ok := v.FieldByName("CapacityUnits").Interface().(*float64); ok && total != nil {
			units += *total
		}
	}
	switch f.Kind() {
	case reflect.Struct:
		one(f)
	case reflect.Slice:
		for i := range f.Len() {
			one(f.Index(i))
		}
	}
	return units
}
