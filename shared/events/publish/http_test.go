package publish

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

func handler(t testing.TB) (*Handler, *sent) {
	t.Helper()
	s, q := service(t)
	return &Handler{Service: s, Auth: auth.AcceptAll(), Log: slog.New(slog.DiscardHandler)}, q
}

// post sends a body with headers of the form "Name: value".
func post(h http.Handler, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/events", strings.NewReader(body))
	for _, x := range headers {
		name, value, _ := strings.Cut(x, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const asJSON = "Content-Type: application/json"

// ce returns a structured CloudEvent with additional members.
func ce(members string) string {
	return `{"specversion":"1.0","id":"1","source":"event://ci/build-finished","type":"x"` + members + `}`
}

func TestHandlerAccepts(t *testing.T) {
	structured := "Content-Type: application/cloudevents+json; charset=utf-8"
	binaryMode := []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-source: /builds", "ce-type: x"}
	for name, tc := range map[string]struct {
		body    string
		headers []string
		want    string // "id uri data" of each event
	}{
		"an object":                         {`{"uri":"event://ci/build-finished","id":"a","data":{"n":1}}`, []string{asJSON}, `a event://ci/build-finished {"n":1}`},
		"an object, charset":                {`{"uri":"event://ci/build-finished","id":"a","data":1}`, []string{"Content-Type: application/json; charset=UTF-8"}, `a event://ci/build-finished 1`},
		"an object, charset misspelled":     {`{"uri":"event://ci/build-finished","id":"a","data":1}`, []string{"Content-Type: application/json; charset=utf8"}, `a event://ci/build-finished 1`},
		"null for id and time":              {`{"uri":"event://ci/build-finished","id":null,"time":null,"data":null}`, []string{asJSON}, `- event://ci/build-finished null`},
		"an array":                          {`[{"uri":"event://ci/build-finished","id":"a","data":1},{"uri":"event://ci/build-finished","id":"b","data":2}]`, []string{asJSON}, `a event://ci/build-finished 1; b event://ci/build-finished 2`},
		"an empty array":                    {`[]`, []string{asJSON}, ``},
		"a foreign id":                      {`{"uri":"event://ci/build-finished","id":"a b","data":1}`, []string{asJSON}, event.ForeignID("", "a b") + ` event://ci/build-finished 1`},
		"EVX-13 a reserved id":              {`[{"uri":"event://ci/build-finished","id":"msg_verification_abc","data":1},{"uri":"event://ci/build-finished","id":"MSG_1","data":2}]`, []string{asJSON}, event.ForeignID("", "msg_verification_abc") + ` event://ci/build-finished 1; MSG_1 event://ci/build-finished 2`},
		"EVX-13 structured, a reserved id":  {`{"specversion":"1.0","id":"msg_terminated_1","source":"event://ci/build-finished","type":"x"}`, []string{structured}, event.ForeignID("event://ci/build-finished", "msg_terminated_1") + ` event://ci/build-finished null`},
		"EVX-13 binary, a reserved id":      {`1`, append(binaryMode[:2:2], "ce-id: msg_gap_1", "ce-source: event://ci/build-finished", "ce-type: x"), event.ForeignID("event://ci/build-finished", "msg_gap_1") + ` event://ci/build-finished 1`},
		"one name in two objects":           {`{"uri":"event://ci/build-finished","id":"a","data":{"a":{"a":1},"b":[{"a":1},{"a":{}}]}}`, []string{asJSON}, `a event://ci/build-finished {"a":{"a":1},"b":[{"a":1},{"a":{}}]}`},
		"structured":                        {ce(`,"data":{"n":1}`), []string{structured}, `1 event://ci/build-finished {"n":1}`},
		"structured, sent as JSON":          {ce(`,"data":1`), []string{asJSON}, `1 event://ci/build-finished 1`},
		"structured, no data":               {ce(``), []string{structured}, `1 event://ci/build-finished null`},
		"structured, Base64":                {ce(`,"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(`{"n":1}`)) + `","datacontenttype":"application/json"`), []string{structured}, `1 event://ci/build-finished {"n":1}`},
		"structured, subject":               {`{"specversion":"1.0","id":"1","source":"/x","type":"x","subject":"event://ci/build-finished","data":1}`, []string{structured}, `1 event://ci/build-finished 1`},
		"structured, mcpuri has precedence": {ce(`,"subject":"event://ci/x","mcpuri":"event://github/a/b/pull_request","data":{"action":"opened"}`), []string{structured}, `1 event://github/a/b/pull_request {"action":"opened"}`},
		"structured, foreign id":            {`{"specversion":"1.0","id":"a/1","source":"event://ci/build-finished","type":"x"}`, []string{structured}, event.ForeignID("event://ci/build-finished", "a/1") + ` event://ci/build-finished null`},
		"structured, a vendor's JSON":       {ce(`,"data":1,"datacontenttype":"application/vnd.x+json"`), []string{structured}, `1 event://ci/build-finished 1`},
		"a batch":                           {`[` + ce(`,"data":1`) + `,` + ce(`,"data":2`) + `]`, []string{"Content-Type: application/cloudevents-batch+json"}, `1 event://ci/build-finished 1; 1 event://ci/build-finished 2`},
		"an empty batch":                    {`[]`, []string{"Content-Type: application/cloudevents-batch+json"}, ``},
		"binary":                            {`{"n":1}`, append(binaryMode, "ce-subject: event://ci/build-finished"), `1 event://ci/build-finished {"n":1}`},
		"binary, percent-encoded":           {`{"action":"opened"}`, append(binaryMode, "ce-mcpuri: event://github/a/%C3%BC%2525/pull_request"), `1 event://github/a/%C3%BC%25/pull_request {"action":"opened"}`},
		"binary, other extensions":          {`1`, append(binaryMode, "ce-mcpuri: event://ci/build-finished", "ce-traceparent: 00-x"), `1 event://ci/build-finished 1`},
		"binary, no data":                   {``, append(binaryMode[1:], "ce-mcpuri: event://ci/build-finished"), `1 event://ci/build-finished null`},
		"binary, the body is not searched":  {`{"specversion":"0.3"}`, append(binaryMode, "ce-mcpuri: event://ci/build-finished"), `1 event://ci/build-finished {"specversion":"0.3"}`},
	} {
		t.Run(name, func(t *testing.T) {
			h, q := handler(t)
			w := post(h, tc.body, tc.headers...)
			if w.Code != http.StatusAccepted || w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			var answer struct{ Accepted []Accepted }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Accepted == nil {
				t.Fatalf("got %s, %v", w.Body, err)
			}
			var got []string
			for i, e := range q.events(t) {
				expect.True(t, "a receiver does not mistake "+e.ID+" for a control message", !strings.HasPrefix(e.ID, "msg_"))
				expect.Equal(t, "the answer for "+e.ID, answer.Accepted[i], (Accepted{e.ID, e.URI}))
				if strings.HasPrefix(e.ID, "evt_") {
					e.ID = "-"
				}
				got = append(got, e.ID+" "+e.URI+" "+string(e.Data))
			}
			expect.Equal(t, "the faults", strings.Join(got, "; "), tc.want)
		})
	}
}

func TestHandlerRefuses(t *testing.T) {
	structured := "Content-Type: application/cloudevents+json"
	ok := `{"uri":"event://ci/build-finished","data":1}`
	for name, tc := range map[string]struct {
		body    string
		headers []string
		status  int
		want    string // part of the body
	}{
		"EVS-07 a schema fault":           {`{"uri":"event://github/a/b/pull_request","data":{"action":"x","number":"1"}}`, []string{asJSON}, 422, `"faults":[{"pointer":"/data/action","message":"must be one of \"opened\", \"closed\""},{"pointer":"/data/number","message":"must be integer, not string"}]`},
		"EVS-07 in an array":              {`[` + ok + `,{"uri":"event://github/a/b/pull_request","data":{}}]`, []string{asJSON}, 422, `{"pointer":"/1/data","message":"lacks \"action\""}`},
		"EVS-07 in a structured event":    {`{"specversion":"1.0","id":"1","source":"event://github/a/b/pull_request","type":"x","data":{}}`, []string{structured}, 422, `{"pointer":"/data","message":"lacks \"action\""}`},
		"EVS-07 in a binary event":        {`{"action":1}`, []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-type: x", "ce-source: event://github/a/b/pull_request"}, 422, `{"pointer":"/action",`},
		"an unknown URI":                  {`{"uri":"event://ci/X","data":1}`, []string{asJSON}, 404, `"kind":"not found","message":"/uri: belongs to no event type","uri":"event://ci/X"`},
		"not a URI":                       {`{"uri":"ci","data":1}`, []string{asJSON}, 400, `{"pointer":"/uri","message":"the event URI does not begin with event://"}`},
		"not JSON":                        {`{`, []string{asJSON}, 400, `"kind":"invalid","message":"the body is not valid JSON"`},
		"empty":                           {``, []string{asJSON}, 400, `is not valid JSON`},
		"two values":                      {ok + ok, []string{asJSON}, 400, `is not valid JSON`},
		"a text":                          {`"x"`, []string{asJSON}, 400, `is neither an event nor an array`},
		"an array of texts":               {`["x"]`, []string{asJSON}, 400, `{"pointer":"/0","message":"is not an object"}`},
		"an array in an array":            {`[[` + ok + `]]`, []string{asJSON}, 400, `is not an object`},
		"no uri, no data":                 {`{}`, []string{asJSON}, 400, `{"pointer":"/uri","message":"is missing"},{"pointer":"/data","message":"is missing"}`},
		"an unknown member":               {`{"uri":"event://ci/build-finished","data":1,"ID":"a"}`, []string{asJSON}, 400, `has the unknown member \"ID\"`},
		"a member twice":                  {`{"uri":"event://ci/build-finished","data":1,"data":2}`, []string{asJSON}, 400, `{"pointer":"/data","message":"is given twice"}`},
		"a payload's member twice":        {`{"uri":"event://ci/build-finished","data":{"a":1,"b":[{},{"x/y":{"c":1,"d":2,"\u0063":3}}]}}`, []string{asJSON}, 400, `{"pointer":"/data/b/1/x~1y/c","message":"is given twice"}`},
		"in an array, twice":              {`[` + ok + `,{"uri":"event://ci/build-finished","data":{"":1,"":2}}]`, []string{asJSON}, 400, `{"pointer":"/1/data/","message":"is given twice"}`},
		"structured, an attribute twice":  {ce(`,"i\u0064":"2"`), []string{structured}, 400, `{"pointer":"/id","message":"is given twice"}`},
		"structured, a member twice":      {ce(`,"data":{"a":1,"a":1}`), []string{structured}, 400, `{"pointer":"/data/a","message":"is given twice"}`},
		"structured, twice in Base64":     {`{"specversion":"1.0","id":"1","source":"event://ci/build-finished","type":"x","data_base64":"` + base64.StdEncoding.EncodeToString([]byte(`{"a":1,"a":1}`)) + `"}`, []string{structured}, 400, `{"pointer":"/data_base64/a","message":"is given twice"}`},
		"binary, a member twice":          {`{"a":{"b":1,"b":1}}`, []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-type: x", "ce-source: event://ci/build-finished"}, 400, `{"pointer":"/a/b","message":"is given twice"}`},
		"a number as id":                  {`{"uri":"event://ci/build-finished","data":1,"id":7}`, []string{asJSON}, 400, `{"pointer":"/id","message":"must be a string"}`},
		"an empty id":                     {`{"uri":"event://ci/build-finished","data":1,"id":""}`, []string{asJSON}, 400, `{"pointer":"/id","message":"is empty"}`},
		"a bad time":                      {`{"uri":"event://ci/build-finished","data":1,"time":"yesterday"}`, []string{asJSON}, 400, `{"pointer":"/time","message":"is not an RFC 3339 time`},
		"AUT-05 another workspace":        {`{"uri":"event://ci/build-finished","data":1,"workspace":"other"}`, []string{asJSON}, 400, `cannot be chosen here`},
		"AUT-06 too deep":                 {`{"uri":"event://ci/build-finished","data":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}`, []string{asJSON}, 400, `deeper than 64`},
		"AUT-06 far too deep":             {strings.Repeat("[", 1<<20), []string{asJSON}, 400, `deeper than 66`},
		"AUT-06 a large body":             {`"` + strings.Repeat("a", MaxBody) + `"`, []string{asJSON}, 413, `"kind":"too large","message":"the body is larger than 5242880 bytes"`},
		"too many events":                 {`[` + strings.Repeat(ok+",", maxEvents) + ok + `]`, []string{asJSON}, 413, `at most 1000`},
		"no media type":                   {ok, nil, 415, `"kind":"unsupported"`},
		"another media type":              {ok, []string{"Content-Type: text/plain"}, 415, `Content-Type must be`},
		"another charset":                 {ok, []string{"Content-Type: application/json; charset=utf-16"}, 415, `UTF-8`},
		"a form":                          {"uri=x", []string{"Content-Type: application/x-www-form-urlencoded"}, 415, ``},
		"CloudEvents in another format":   {`x`, []string{"Content-Type: application/cloudevents+avro", "ce-specversion: 1.0"}, 415, ``},
		"compressed":                      {ok, []string{asJSON, "Content-Encoding: gzip"}, 415, `the Content-Encoding \"gzip\" is not supported`},
		"compressed after identity":       {ok, []string{asJSON, "Content-Encoding: identity", "Content-Encoding: br"}, 415, `\"br\"`},
		"structured, an array":            {`[]`, []string{structured}, 400, `not a CloudEvent`},
		"structured, not a CloudEvent":    {ok, []string{structured}, 400, `specversion is missing`},
		"a batch, an object":              {`{}`, []string{"Content-Type: application/cloudevents-batch+json"}, 400, `not a batch`},
		"a batch with another":            {`[` + ok + `]`, []string{"Content-Type: application/cloudevents-batch+json"}, 400, `/0: is not a CloudEvent`},
		"structured, another version":     {`{"specversion":"0.3","id":"1","source":"event://ci/build-finished","type":"x"}`, []string{structured}, 400, `{"pointer":"/specversion","message":"must be 1.0"}`},
		"structured, incomplete":          {`{"specversion":"1.0","source":"event://ci/build-finished"}`, []string{structured}, 400, `{"pointer":"/id","message":"is missing; CloudEvents requires it"},{"pointer":"/type",`},
		"structured, no URI":              {`{"specversion":"1.0","id":"1","source":"/x","type":"x"}`, []string{structured}, 400, `none of mcpuri, source and subject is an event:// URI`},
		"structured, not JSON inside":     {ce(`,"data":"x","datacontenttype":"text/plain"`), []string{structured}, 415, `a payload must be JSON`},
		"structured, bad Base64":          {ce(`,"data_base64":5`), []string{structured}, 400, `{"pointer":"/data_base64","message":"is not Base64"}`},
		"structured, Base64 is not JSON":  {ce(`,"data_base64":"eHg="`), []string{structured}, 400, `{"pointer":"/data_base64","message":"is not valid JSON"}`},
		"structured, data twice":          {ce(`,"data":1,"data_base64":"MQ=="`), []string{structured}, 400, `is given together with data`},
		"structured, bad time":            {ce(`,"time":"x"`), []string{structured}, 400, `"/time"`},
		"binary, bad encoding":            {`1`, []string{asJSON, "ce-specversion: 1.0", "ce-id: %zz", "ce-type: x", "ce-source: event://ci/build-finished"}, 400, `"faults":[{"pointer":"/id","message":"is badly percent-encoded in its header"}]`},
		"binary, a header twice":          {`1`, []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-id: 2", "ce-type: x", "ce-source: event://ci/build-finished"}, 400, `"faults":[{"pointer":"/id","message":"is given in several headers"}]`},
		"binary, not JSON":                {`x`, []string{"Content-Type: text/plain", "ce-specversion: 1.0", "ce-id: 1", "ce-type: x", "ce-source: event://ci/build-finished"}, 415, ``},
		"binary, broken JSON":             {`x`, []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-type: x", "ce-source: event://ci/build-finished"}, 400, `{"pointer":"","message":"is not valid JSON"}`},
		"AUT-06 a page of another origin": {ok, []string{asJSON, "Origin: https://evil.example"}, 403, `Origin`},
	} {
		t.Run(name, func(t *testing.T) {
			h, q := handler(t)
			w := post(h, tc.body, tc.headers...)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) || !strings.HasPrefix(w.Body.String(), `{"error":{"kind":"`) || !json.Valid(w.Body.Bytes()) {
				t.Errorf("got %d %.400s\nwant %d %s", w.Code, w.Body, tc.status, tc.want)
			}
			expect.Equal(t, "queues with messages", len(q.on), 0)
		})
	}
}

func testKeys(t *testing.T) auth.Authenticator {
	t.Helper()
	hash := func(key string) string {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	keys := expect.Value(auth.NewStaticKeys([]auth.Key{
		{Principal: "reader", Scopes: []string{auth.ScopeRead, auth.ScopeSubscribe}, SHA256: hash("reader-key")},
		{Principal: "publisher", Workspace: "other", Scopes: []string{auth.ScopePublish}, SHA256: hash("publisher-key")},
	}, nil))(t)
	return keys
}

func TestHandlerAuthenticates(t *testing.T) {
	h, q := handler(t)
	h.Auth, h.MetadataURL = testKeys(t), "https://x.example/.well-known/oauth-protected-resource"
	ok := `{"uri":"event://ci/build-finished","data":1}`
	for name, tc := range map[string]struct {
		headers   []string
		status    int
		challenge string
	}{
		"AUT-03 no credentials":               {[]string{asJSON}, 401, `Bearer scope="events:publish", resource_metadata="https://x.example/.well-known/oauth-protected-resource"`},
		"AUT-03 a wrong key":                  {[]string{asJSON, "Authorization: Bearer x"}, 401, `Bearer error="invalid_token", scope="events:publish", resource_metadata="https://x.example/.well-known/oauth-protected-resource"`},
		"AUT-03 a key without scope":          {[]string{asJSON, "Authorization: Bearer reader-key"}, 403, `Bearer error="insufficient_scope", scope="events:publish", resource_metadata="https://x.example/.well-known/oauth-protected-resource"`},
		"AUT-03 no credentials, and not JSON": {nil, 401, `Bearer scope=`},
		"AUT-03 a key with the scope":         {[]string{asJSON, "Authorization: Bearer publisher-key"}, 202, ``},
		"AUT-03 the key is not in URLs":       {[]string{asJSON, "X-Api-Key: publisher-key"}, 401, `Bearer scope=`},
	} {
		t.Run(name, func(t *testing.T) {
			w := post(h, ok, tc.headers...)
			if got := w.Header().Get("WWW-Authenticate"); w.Code != tc.status || !strings.HasPrefix(got, tc.challenge) || tc.challenge == "" && got != "" {
				t.Errorf("got %d %s %s", w.Code, got, w.Body)
			}
		})
	}
	if e := q.events(t); len(e) != 1 || e[0].Workspace != "other" {
		t.Errorf("AUT-05: got %+v, want the event in the publisher's workspace", e)
	}
}

// Given a client that announces a body that is too large and does not send it, the handler refuses the request
// without waiting for the body.
func TestAUT_06_AnAnnouncedLargeBodyIsNotAwaited(t *testing.T) {
	h, _ := handler(t)
	body := &unread{}
	r := httptest.NewRequest(http.MethodPost, "/events", body)
	r.ContentLength = MaxBody + 1
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	expect.Equal(t, "the status", w.Code, http.StatusRequestEntityTooLarge)
	expect.Equal(t, "the reads", body.reads, 0)
}

// unread is a body that counts how often it is read.
type unread struct{ reads int }

func (u *unread) Read([]byte) (int, error) {
	u.reads++
	return 0, io.ErrUnexpectedEOF
}

func TestHandlerAllowsOnlyPOST(t *testing.T) {
	h, _ := handler(t)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/events", nil))
		expect.Equal(t, method+": the status", w.Code, http.StatusMethodNotAllowed)
		expect.Equal(t, method+": the header Allow", w.Header().Get("Allow"), "POST")
	}
}

func TestHandlerRevealsNoInternals(t *testing.T) {
	h, q := handler(t)
	q.fail = map[queue.Name]error{queue.Events: io.ErrUnexpectedEOF}
	w := post(h, `{"uri":"event://ci/build-finished","data":1}`, asJSON)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || strings.Contains(w.Body.String(), "EOF") {
		t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	h.Service = nil // causes a panic
	if w := post(h, `{"uri":"event://ci/build-finished","data":1}`, asJSON); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), `"message":"internal error"`) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// TestCloudEventsSDK sends events with the official SDK in all three modes.
func TestCloudEventsSDK(t *testing.T) {
	h, q := handler(t)
	server := httptest.NewServer(h)
	defer server.Close()
	client := expect.Value(cloudevents.NewClientHTTP(cloudevents.WithTarget(server.URL + "/events")))(t)
	e := cloudevents.NewEvent()
	e.SetID("a/1 ü")
	e.SetSource("https://ci.example.com/builds")
	e.SetType("com.example.build")
	e.SetSubject("event://ci/build-finished")
	e.SetTime(noon.Add(-time.Hour))
	expect.OK(t, e.SetData(cloudevents.ApplicationJSON, map[string]any{"build": 7, "html": "<b>"}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, ctx := range map[string]context.Context{
		"binary": cloudevents.WithEncodingBinary(ctx), "structured": cloudevents.WithEncodingStructured(ctx),
	} {
		if result := client.Send(ctx, e); !cloudevents.IsACK(result) {
			t.Errorf("%s: got %v", name, result)
		}
	}
	r := expect.Value(cehttp.NewHTTPRequestFromEvents(ctx, server.URL+"/events", []cloudevents.Event{e, e}))(t)
	answer := expect.Value(http.DefaultClient.Do(r))(t)
	_ = answer.Body.Close()
	expect.Equal(t, "the status of the batch", answer.StatusCode, http.StatusAccepted)
	events := q.events(t)
	expect.MustEqual(t, "the number of events", len(events), 4)
	for i, got := range events {
		if got.URI != "event://ci/build-finished" || got.ID != event.ForeignID("https://ci.example.com/builds", "a/1 ü") ||
			!got.Time.Equal(noon.Add(-time.Hour)) || string(got.Data) != `{"build":7,"html":"\u003cb\u003e"}` {
			t.Errorf("event %d: got %+v %s", i, got, got.Data)
		}
	}
}
