package lambda

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrRecursive is returned by [Function.Invoke] for a function that was invoked too often in one chain of requests.
var ErrRecursive = errors.New("lambda: the function is invoked in a recursive loop")

// maxChain is the maximum number of invocations of a function in a chain of requests. AWS says "about 16 times".
const maxChain = 16

// TraceHeader is the header with which the SDK in a function forwards the trace of its invocation. AWSTraceHeader is
// the system attribute in which SQS stores it.
const (
	TraceHeader    = "X-Amzn-Trace-Id"
	AWSTraceHeader = "AWSTraceHeader"
)

// trace counts how often each function was invoked in a chain of requests. It is encoded in the header as
// Lineage=HASH:COUNT|HASH:COUNT. Other members of the header are kept unchanged.
type trace struct {
	members []string // NAME=VALUE, without Lineage
	lineage []string // HASH:COUNT
}

// PlainTrace returns a trace header without the escapes that the SDK adds.
func PlainTrace(header string) string {
	if text, err := url.PathUnescape(header); err == nil {
		return text
	}
	return header
}

// parseTrace parses a header. An empty or malformed one starts a new chain.
func parseTrace(header string) (t trace) {
	for member := range strings.SplitSeq(PlainTrace(header), ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(member), "=")
		switch {
		case !ok || value == "":
		case strings.EqualFold(name, "Lineage"):
			t.lineage = strings.Split(value, "|")
		default:
			t.members = append(t.members, name+"="+value)
		}
	}
	if len(t.members) == 0 {
		id := make([]byte, 12)
		_, _ = rand.Read(id) // never fails
		t.members = []string{fmt.Sprintf("Root=1-%08x-%s", time.Now().Unix(), hex.EncodeToString(id)), "Sampled=0"}
	}
	return t
}

// enter counts an invocation of a function and returns the number of earlier ones.
func (t *trace) enter(arn string) (before int) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(arn)) // never fails
	name := fmt.Sprintf("%08x:", h.Sum32())
	for i, entry := range t.lineage {
		if count, ok := strings.CutPrefix(entry, name); ok {
			before, _ = strconv.Atoi(count) // 0 if it is not a number
			t.lineage[i] = name + strconv.Itoa(before+1)
			return before
		}
	}
	t.lineage = append(t.lineage, name+"1")
	return 0
}

func (t *trace) String() string {
	return strings.Join(append(t.members, "Lineage="+strings.Join(t.lineage, "|")), ";")
}

// Loops reports whether Invoke refuses an invocation with this trace. If so, it counts the refusal.
func (f *Function) Loops(header string) bool {
	f.mu.Lock()
	allow := f.cfg.AllowLoops
	f.mu.Unlock()
	if allow || f.Chained(header) < maxChain {
		return false
	}
	f.count(func(s *Stats) { s.Recursive++ })
	return true
}

// Chained returns how often the function was invoked in the chain of a trace.
func (f *Function) Chained(header string) int {
	t := parseTrace(header)
	return t.enter(f.cfg.ARN)
}
