package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

const (
	defaultLimit = operations.DefaultLimit
	maxLimit     = operations.MaxLimit
	maxValue     = 2048
	maxBody      = 64 << 10
)

// query reads the members of a URL's query: one that is not known, or given twice, is refused, so that
// a misspelt filter never lists everything.
type query struct {
	values map[string]string
	list   string // the path of the list, which its cursors are for
	err    error
}

// read reads the parameters of an operation. It refuses others, unless params is nil.
func (q *query) read(r *http.Request, params []operations.Param) {
	known := make([]string, len(params))
	for i, p := range params {
		known[i] = p.Name
	}
	*q = query{values: map[string]string{}, list: r.Pattern}
	for name, values := range r.URL.Query() {
		switch {
		case params == nil:
		case !slices.Contains(known, name):
			q.fail("the query member %.100q is not known (known: %s)", name, cmp.Or(strings.Join(known, ", "), "none"))
		case len(values) > 1:
			q.fail("the query member %s is given more than once", name)
		case len(values[0]) > maxValue:
			q.fail("the query member %s is longer than %d bytes", name, maxValue)
		default:
			q.values[name] = values[0]
		}
	}
}

// page is after which key a page of a list begins, and its length.
func (q *query) page() (after string, limit int) { return q.cursor(), q.limit() }

func (q *query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fault.New(fault.Invalid, format, args...)
	}
}

func (q *query) text(name string) string { return q.values[name] }

// oneOf is a text that must be one of those.
func (q *query) oneOf(name string, allowed ...string) string {
	v := q.values[name]
	if v != "" && !slices.Contains(allowed, v) {
		q.fail("%s is %.100q (allowed: %s)", name, v, strings.Join(allowed, ", "))
	}
	return v
}

func (q *query) time(name string) time.Time {
	v := q.values[name]
	if v == "" {
		return time.Time{}
	}
	t, err := event.ParseTime(v)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		q.fail("%s is %.100q, which is not a time as 2026-11-22T12:00:00Z", name, v)
		return time.Time{}
	}
	return t
}

// span is since and until, which may be absent, in their order.
func (q *query) span() (since, until time.Time) {
	since, until = q.time("since"), q.time("until")
	if err := inOrder(since, until); err != nil && q.err == nil {
		q.err = err
	}
	return since, until
}

// inOrder refuses a span that ends before it begins.
func inOrder(since, until time.Time) error {
	if since.IsZero() || until.IsZero() || !until.Before(since) {
		return nil
	}
	return fault.New(fault.Invalid, "until is %s, which is before since, %s", until.Format(time.RFC3339Nano), since.Format(time.RFC3339Nano))
}

// eventURI is the URI of one event as the server writes it, however it is given.
func (q *query) eventURI(name string) string {
	v := q.values[name]
	if v == "" {
		return ""
	}
	uri, err := catalog.Canonical(v)
	switch {
	case err != nil:
		q.fail("%s is %.200q: %s", name, v, fault.Public(err))
	case slices.Contains(strings.Split(v, "/"), catalog.Wildcard):
		q.fail("%s is %.200q, which is a pattern (allowed: the URI of one event, such as event://ci/build-finished)", name, v)
	}
	return uri
}

// origin is that of an endpoint as the server writes it, however it is given.
func (q *query) origin() string { return subscription.SameOrigin(q.values["origin"]) }

func (q *query) limit() int {
	v := q.values["limit"]
	if v == "" {
		return defaultLimit
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > maxLimit {
		q.fail("limit is %.100q (allowed: 1 to %d)", v, maxLimit)
	}
	return n
}

// cursor is where a list goes on. A cursor is the list's mark and a key, and nothing else: whoever makes one up
// reads the same list from elsewhere.
func (q *query) cursor() string {
	v := q.values["cursor"]
	if v == "" {
		return ""
	}
	b, err := opaque.Decode(v)
	key, ok := bytes.CutPrefix(b, q.mark())
	if err != nil || !ok || len(key) == 0 || len(key) > 511 {
		q.fail("the cursor is not one of this list")
		return ""
	}
	return string(key)
}

// mark begins the cursors of a list: a version, and what sets one list apart from another.
func (q *query) mark() []byte {
	h := fnv.New32a()
	_, _ = h.Write([]byte(q.list))
	return h.Sum([]byte{cursorVersion})
}

const cursorVersion = 2

// next is the cursor of the page after that key; empty for the last page.
func (q *query) next(key string) string {
	if key == "" {
		return ""
	}
	return opaque.Encode(append(q.mark(), key...))
}

// body reads a JSON body into v, if there is one.
func (c *call) body(v any) error { return c.bodyUpTo(maxBody, v) }

func (c *call) bodyUpTo(most int64, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(nil, c.Body, most))
	if err != nil {
		return fault.New(fault.TooLarge, "the body is larger than %d bytes, or ended early", most)
	}
	if len(strings.TrimSpace(string(b))) == 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fault.New(fault.Invalid, "the body is not as described in openapi.json: %s", explained(err))
	}
	if d.More() {
		return fault.New(fault.Invalid, "the body has more than one JSON value")
	}
	return nil
}

// explained is what package json found, in the words of JSON.
func explained(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s has the wrong type, %s", cmp.Or(e.Field, "it"), e.Value)
	}
	if e, ok := errors.AsType[*time.ParseError](err); ok {
		return fmt.Sprintf("%.100q is not a time as 2026-11-22T12:00:00Z", e.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return "the member " + name + " is not known"
	}
	return "it is not valid JSON"
}
