// Package meter stands between the functions and the emulators and counts what
// AWS would bill: requests by service and operation, capacity units, and the
// 64 KiB pieces of queue messages. It changes one thing on the way: it
// asks DynamoDB to say what capacity each request consumed.
package meter

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"mcpevents/shared/fault"
)

// Counts are what was seen since the last reset.
type Counts struct {
	// Requests by "service.Operation".
	Requests map[string]int64 `json:"requests"`
	// Units of DynamoDB by operation: read or write units, as the operation says.
	Units map[string]float64 `json:"units"`
	// Pieces of SQS by operation: requests counted in 64 KiB.
	Pieces map[string]int64 `json:"pieces"`
	// Empty receives are those that brought nothing: they cost, but not per event.
	Empty int64 `json:"emptyReceives"`
}

// Meter is a reverse proxy to one emulator endpoint. Several may share their
// counts through [Meter.To].
type Meter struct {
	mu     sync.Mutex
	counts Counts
}

// New makes a meter at zero.
func New() *Meter {
	m := &Meter{}
	m.Reset()
	return m
}

// Reset sets all counts to zero.
func (m *Meter) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts = Counts{Requests: map[string]int64{}, Units: map[string]float64{}, Pieces: map[string]int64{}}
}

// Counts is a copy of what was seen.
func (m *Meter) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Counts{
		Requests: maps.Clone(m.counts.Requests), Units: maps.Clone(m.counts.Units),
		Pieces: maps.Clone(m.counts.Pieces), Empty: m.counts.Empty,
	}
}

// To is a handler that passes requests on to an emulator and counts them.
func (m *Meter) To(endpoint string) (http.Handler, error) {
	target, err := url.Parse(endpoint)
	if err != nil || target.Host == "" {
		return nil, fault.New(fault.Invalid, "%q is not an endpoint", endpoint)
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // queue URLs are made of it
			m.sent(r.Out)
		},
		ModifyResponse: m.answered,
		Transport:      &http.Transport{MaxIdleConnsPerHost: 64},
	}, nil
}

// operation is "dynamodb.GetItem" of a request to an AWS JSON service.
func operation(h http.Header) string {
	service, op, ok := strings.Cut(h.Get("X-Amz-Target"), ".")
	if !ok {
		return "other"
	}
	switch {
	case strings.HasPrefix(service, "DynamoDB"):
		return "dynamodb." + op
	case service == "AmazonSQS":
		return "sqs." + op
	case service == "TrentService":
		return "kms." + op
	}
	return strings.ToLower(service) + "." + op
}

const piece = 64 << 10

func (m *Meter) sent(r *http.Request) {
	op := operation(r.Header)
	body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return // the emulator will say what is wrong with it
	}
	size := len(body)
	if strings.HasPrefix(op, "dynamodb.") {
		var members map[string]json.RawMessage
		if json.Unmarshal(body, &members) == nil {
			members["ReturnConsumedCapacity"] = json.RawMessage(`"TOTAL"`)
			if changed, err := json.Marshal(members); err == nil {
				body = changed
			}
		}
		r.Header.Set("Accept-Encoding", "identity")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.Requests[op]++
	if strings.HasPrefix(op, "sqs.Send") {
		m.counts.Pieces[op] += int64((size + piece - 1) / piece)
	}
}

func (m *Meter) answered(resp *http.Response) error {
	op := operation(resp.Request.Header)
	dynamo, receive := strings.HasPrefix(op, "dynamodb."), op == "sqs.ReceiveMessage"
	if !dynamo && !receive {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	m.mu.Lock()
	defer m.mu.Unlock()
	if receive {
		var got struct{ Messages []json.RawMessage }
		_ = json.Unmarshal(body, &got) // an error answer has none
		if len(got.Messages) == 0 {
			m.counts.Empty++
		}
		m.counts.Pieces[op] += int64(max(1, (len(body)+piece-1)/piece))
		return nil
	}
	m.counts.Units[op] += units(body)
	return nil
}

type capacity struct{ CapacityUnits float64 }

// units reads the consumed capacity of an answer, which is one object for an
// operation on one table and a list for the others.
func units(body []byte) float64 {
	var one struct{ ConsumedCapacity capacity }
	if json.Unmarshal(body, &one) == nil {
		return one.ConsumedCapacity.CapacityUnits
	}
	var many struct{ ConsumedCapacity []capacity }
	if json.Unmarshal(body, &many) != nil {
		return 0
	}
	sum := 0.0
	for _, c := range many.ConsumedCapacity {
		sum += c.CapacityUnits
	}
	return sum
}

// ServeHTTP tells the counts on GET and resets them on DELETE.
func (m *Meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(m.Counts())
	if r.Method == http.MethodDelete {
		m.Reset()
	}
}
