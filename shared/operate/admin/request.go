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
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	maxValue      = 2048 // bytes of a query parameter
	maxBody       = 64 << 10
	cursorVersion = 2
)

// request holds the query parameters of a request, which [readRequest] has checked. All operations share this type, because a parameter
// has the same meaning in each operation. A parameter is zero if the operation does not have it or the caller did not give it.
type request struct {
	Subscription, Event, Name, Principal, Queue string
	State, Outcome, Kind                        string
	Origin                                      string // in the form in which the server writes origins
	URI                                         string // of a single event, in the form in which the server writes URIs
	Since, Until                                time.Time
	DryRun                                      bool

	// After is the key of the last item on the previous page of the list, or empty for the first page. It is decoded from the query parameter
	// cursor.
	After string
	Limit int

	list string // the pattern of the path; cursors contain its hash, so that a cursor works only with the list that returned it
}

// readRequest reads the query parameters of an operation. It refuses unknown and repeated parameters, because a list with a
// misspelled filter would show everything. Operations without a list of parameters ignore the query.
func readRequest(r *http.Request, params []operations.Param) (request, error) {
	q := request{list: r.Pattern, Limit: operations.DefaultLimit}
	values, err := readValues(r.URL, params)
	if err != nil {
		return q, err
	}
	for _, p := range params {
		v, given := values[p.Name]
		if v == "" && (!given || p.Name != "dryRun") { // an empty dryRun is an error, and not a real erasure
			continue
		}
		if err := q.set(p, v); err != nil {
			return q, err
		}
	}
	return q, checkOrder(q.Since, q.Until)
}

func readValues(u *url.URL, params []operations.Param) (map[string]string, error) {
	if params == nil {
		return nil, nil
	}
	given, err := httpjson.ParseQuery(u)
	if err != nil {
		return nil, err
	}
	known := make([]string, len(params))
	for i, p := range params {
		known[i] = p.Name
	}
	values := make(map[string]string, len(given))
	for name, all := range given {
		switch {
		case !slices.Contains(known, name):
			return nil, fault.New(fault.Invalid, "the query member %.100q is not known (known: %s)", name, cmp.Or(strings.Join(known, ", "), "none"))
		case len(all) > 1:
			return nil, fault.New(fault.Invalid, "the query member %s is given more than once", name)
		case len(all[0]) > maxValue:
			return nil, fault.New(fault.Invalid, "the query member %s is longer than %d bytes", name, maxValue)
		}
		values[name] = all[0]
	}
	return values, nil
}

func (q *request) set(p operations.Param, v string) (err error) {
	if p.Enum != nil && !slices.Contains(p.Enum, v) {
		return fault.New(fault.Invalid, "%s is %.100q (allowed: %s)", p.Name, v, strings.Join(p.Enum, ", "))
	}
	unchanged := map[string]*string{
		"subscription": &q.Subscription, "event": &q.Event, "name": &q.Name, "principal": &q.Principal,
		"state": &q.State, "outcome": &q.Outcome, "kind": &q.Kind,
	}
	if field, ok := unchanged[p.Name]; ok {
		*field = v
		return nil
	}
	switch p.Name {
	case "dryRun":
		q.DryRun = v == "true"
	case "origin":
		q.Origin, err = readOrigin(v)
	case "queue":
		q.Queue, err = readQueue(v)
	case "uri":
		q.URI, err = readEventURI(p.Name, v)
	case "since":
		q.Since, err = readTime(p.Name, v)
	case "until":
		q.Until, err = readTime(p.Name, v)
	case "cursor":
		q.After, err = q.readCursor(v)
	case "limit":
		q.Limit, err = readLimit(v, p.Integer)
	default:
		err = fault.New(fault.Internal, "the parameter %s has no field", p.Name)
	}
	return err
}

func readTime(name, v string) (time.Time, error) {
	t, err := event.ParseTime(v)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return t, fault.New(fault.Invalid, "%s is %.100q, which is not a time (e.g. 2026-11-22T12:00:00Z)", name, v)
	}
	return t, nil
}

// readOrigin returns an origin in the spelling in which the server stores it. It returns an error if v is not an origin, for example a host
// without a scheme. Otherwise the operator would get an empty list, and might conclude that no delivery to the host has failed.
func readOrigin(v string) (string, error) {
	origin := subscription.SameOrigin(v)
	if _, err := switches.Parse(string(switches.OriginSwitch(origin))); err != nil {
		return "", fault.New(fault.Invalid, "origin is %.100q, which is not an origin (e.g. https://hooks.example.com)", v)
	}
	return origin, nil
}

// readQueue returns the name of a queue, or an error if no dead letter can come from a queue with this name.
func readQueue(v string) (string, error) {
	if v == deadletter.WebhookQueue || slices.Contains(queue.Names(), queue.Name(v)) || strings.HasPrefix(v, "table:") {
		return v, nil
	}
	return "", fault.New(fault.Invalid, "queue is %.100q (allowed: %s, inbox, events, deliveries, slow, table:NAME)", v, deadletter.WebhookQueue)
}

// checkOrder returns an error if a time span ends before it begins. A zero time means that the span has no beginning or no end.
func checkOrder(since, until time.Time) error {
	if since.IsZero() || until.IsZero() || !until.Before(since) {
		return nil
	}
	return fault.New(fault.Invalid, "until is %s, which is before since, %s", until.Format(time.RFC3339Nano), since.Format(time.RFC3339Nano))
}

// readEventURI returns the URI of one event in the spelling in which the server stores it. It returns an error for a pattern.
func readEventURI(name, v string) (string, error) {
	uri, err := catalog.Canonical(v)
	switch {
	case err != nil:
		return "", fault.New(fault.Invalid, "%s is %.200q: %s", name, v, fault.Public(err))
	case slices.Contains(strings.Split(v, "/"), catalog.Wildcard):
		return "", fault.New(fault.Invalid, "%s is %.200q, which is a pattern (allowed: the URI of one event, such as event://ci/build-finished)", name, v)
	}
	return uri, nil
}

func readLimit(v string, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return n, fault.New(fault.Invalid, "limit is %.100q (allowed: 1 to %d)", v, most)
	}
	return n, nil
}

// readCursor returns the key of a list item from a cursor of this list. A cursor consists of [request.mark] and the key. It needs no
// signature, because a caller with a forged cursor only gets another page of the same list.
func (q *request) readCursor(v string) (string, error) {
	b, err := opaque.Decode(v)
	key, ok := bytes.CutPrefix(b, q.mark())
	if err != nil || !ok || len(key) == 0 || len(key) > 511 {
		return "", fault.New(fault.Invalid, "the cursor is not from this list")
	}
	return string(key), nil
}

// mark returns the first bytes of this list's cursors: a version and a hash of the list's path. The server refuses a cursor that begins
// with the mark of another list.
func (q *request) mark() []byte {
	h := fnv.New32a()
	_, _ = h.Write([]byte(q.list))
	return h.Sum([]byte{cursorVersion})
}

func (q *request) cursorAfter(key string) string {
	if key == "" {
		return ""
	}
	return opaque.Encode(append(q.mark(), key...))
}

// readBody decodes the JSON body into v. Without a body it leaves v unchanged.
func (c *call) readBody(v any) error { return c.readBodyUpTo(maxBody, v) }

func (c *call) readBodyUpTo(most int64, v any) error {
	if err := httpjson.CheckEncoding(c.Header); err != nil {
		return err
	}
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
		return fault.New(fault.Invalid, "the body is not as described in openapi.json: %s", explain(err))
	}
	if d.More() {
		return fault.New(fault.Invalid, "the body has more than one JSON value")
	}
	if name := findRepeated(b); name != "" {
		return fault.New(fault.Invalid, "the body has the member %.100q more than once", name)
	}
	return nil
}

// findRepeated returns the name of a member that an object in the JSON value has more than once, or "". Package json ignores the case of
// names and uses the last of several equal names. So a body with "dryRun": true could be overridden by a later "DryRun": false.
func findRepeated(value json.RawMessage) string {
	names := map[string]bool{}
	for key, member := range jsonrpc.Members(value) {
		name := strings.ToLower(strings.ToUpper(string(key))) // folds like package json, for which the long s (ſ) equals s
		if names[name] {
			return string(key)
		}
		names[name] = true
		if name := findRepeated(member); name != "" {
			return name
		}
	}
	for element := range jsonrpc.Elements(value) {
		if name := findRepeated(element); name != "" {
			return name
		}
	}
	return ""
}

// explain rewords an error of package json, because callers do not know the names of Go types.
func explain(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf("%s has the wrong type, %s", cmp.Or(e.Field, "it"), e.Value)
	}
	if e, ok := errors.AsType[*time.ParseError](err); ok {
		return fmt.Sprintf("%.100q is not a time (e.g. 2026-11-22T12:00:00Z)", e.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return "the member " + name + " is not known"
	}
	return "it is not valid JSON"
}
