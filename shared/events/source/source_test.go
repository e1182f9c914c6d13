package source

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/source/pattern"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/test/expect"
)

func decoded(t *testing.T, text string) any {
	t.Helper()
	return expect.Value(DecodeDocument([]byte(text)))(t)
}

func value(t *testing.T, text string) Value {
	t.Helper()
	return expect.Value(ParseValue(decoded(t, text)))(t)
}

func matching(t *testing.T, text string) *pattern.Pattern {
	t.Helper()
	return expect.Value(pattern.Parse([]byte(text)))(t)
}

func TestMap(t *testing.T) {
	s := Source{Events: []Mapping{
		{
			Match: matching(t, `{"headers":{"x-kind":["order"]},"body":{"state":["shipped"]}}`), Name: "order.shipped",
			Variables: map[string]Value{"shop": value(t, `"/body/shop/name"`), "kind": value(t, `"fixed"`), "number": value(t, `"/body/n"`)},
			ID:        value(t, `"/headers/x-id"`), Time: value(t, `"/body/at"`),
			Data: value(t, `{"n":"/body/n","first":"/body/items/0","missing":"/body/nothing","const":7,"deep":{"on":true,"a/b":"/body/a~1b"}}`),
		},
		{Match: matching(t, `{"headers":{"x-kind":["order"]}}`), Name: "order.other", Data: value(t, `"/body/shop"`)},
		{Match: matching(t, `{"headers":{"x-kind":["whole"]}}`), Name: "whole"},
	}}
	tests := []struct {
		name, doc string
		want      *Event
		faults    []string
	}{
		{
			"SRC-04 pointers, constants and objects of them",
			`{"headers":{"x-kind":"order","x-id":"d-1"},"body":{"state":"shipped","shop":{"name":"acme"},"n":12345678901234567890,"at":"2026-11-21T09:30:00+01:00","items":["a"],"a/b":[1]}}`,
			&Event{
				Name: "order.shipped", ID: "d-1", Time: time.Date(2026, 11, 21, 8, 30, 0, 0, time.UTC),
				Variables: map[string]string{"shop": "acme", "kind": "fixed", "number": "12345678901234567890"},
				Data:      json.RawMessage(`{"const":7,"deep":{"a/b":[1],"on":true},"first":"a","n":12345678901234567890}`),
			}, nil,
		},
		{
			"SRC-03 the first mapping that matches wins", `{"headers":{"x-kind":"order"},"body":{"state":"open","shop":"<&>"}}`,
			&Event{Mapping: 1, Name: "order.other", Variables: map[string]string{}, Data: json.RawMessage(`"<&>"`)}, nil,
		},
		{
			"SRC-04 without data the payload is the body", `{"headers":{"x-kind":"whole"},"body":[1.50]}`,
			&Event{Mapping: 2, Name: "whole", Variables: map[string]string{}, Data: json.RawMessage(`[1.50]`)}, nil,
		},
		{"SRC-03 an unmatched document is not an event", `{"headers":{"x-kind":"ping"},"body":{}}`, nil, nil},
		{
			"SRC-04 every place that does not fit is named",
			`{"headers":{"x-kind":"order"},"body":{"state":"shipped","shop":{"name":""},"n":{},"at":"yesterday"}}`,
			nil,
			[]string{"/id", "/time", "/variables/number", "/variables/shop"},
		},
		{
			"SRC-04 a boolean may be a variable but not an id",
			`{"headers":{"x-kind":"order","x-id":true},"body":{"state":"shipped","shop":{"name":false},"n":1}}`,
			nil,
			[]string{"/id"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := s.Map(decoded(t, tt.doc))
			expect.Deep(t, "the document", got, tt.want)
			if len(tt.faults) == 0 {
				expect.OK(t, err)
				return
			}
			unfit, _ := fault.DataOf(err).(Unfit)
			at := map[string]bool{}
			for _, f := range unfit.Faults {
				at[f.Pointer] = true
			}
			for _, pointer := range tt.faults {
				expect.True(t, "a fault at "+pointer, at[pointer])
			}
			expect.Fault(t, "the error", err, fault.Unprocessable)
			expect.Len(t, "the faults", unfit.Faults, len(tt.faults))
		})
	}
}

func TestTimes(t *testing.T) {
	want := time.Date(2026, 11, 21, 9, 30, 0, 0, time.UTC)
	for text, micros := range map[string]int64{
		`"2026-11-21T09:30:00Z"`: 0, `"2026-11-21t09:30:00z"`: 0, `1795253400`: 0, `"1795253400"`: 0, `1795253400000`: 0, `"1795253400.000250"`: 250, `1795253400001`: 1000,
	} {
		if got, ok := parseTime(decoded(t, text)); !ok || !got.Equal(want.Add(time.Duration(micros)*time.Microsecond)) {
			t.Errorf("SRC-04 %s: got %v %v", text, got, ok)
		}
	}
	for _, text := range []string{`""`, `"soon"`, `-1`, `0`, `1e300`, `"NaN"`, `true`, `{}`, `"0001-01-01T00:00:00Z"`, `"2026-11-21T9:30:00Z"`} {
		if got, ok := parseTime(decoded(t, text)); ok {
			t.Errorf("SRC-04 %s: got %v", text, got)
		}
	}
}

func TestParseValue(t *testing.T) {
	for text, want := range map[string]string{
		`"/a~2b"`: "~ is written ~0", `{"x":{"y":"/~"}}`: "/x: /y: ", `"/` + strings.Repeat("a", jsonpointer.MaxLength) + `"`: "too long",
		strings.Repeat(`{"a":`, jsonpointer.MaxDepth+1) + "1" + strings.Repeat("}", jsonpointer.MaxDepth+1): "nested deeper",
	} {
		expect.Fault(t, "SRC-04 "+text, expect.ErrOf(ParseValue(decoded(t, text))), fault.Invalid, want)
	}
	for pointer, want := range map[string]any{"/0": "a", "/1/x": nil, "/1/y": false, "/2": false, "/-1": false, "/00": false, "/0/0": false} {
		got, ok := value(t, `"`+pointer+`"`).Evaluate(decoded(t, `["a",{"x":null}]`))
		if missing := want == false; ok == missing || ok && got != want {
			t.Errorf("SRC-04 %s: got %v %v, want %v", pointer, got, ok, want)
		}
	}
}

func TestReadRequest(t *testing.T) {
	header := func(contentType string) http.Header {
		return http.Header{
			"Content-Type": {contentType}, "Authorization": {"Bearer secret"}, "Cookie": {"secret"}, "X-Signature": {"secret"}, "X-Two": {"a", "b"},
		}
	}
	tests := []struct{ name, contentType, body, want string }{
		{"SRC-03 JSON", "application/json; charset=utf-8", ` {"a": 1.0}`, `{"a":1.0}`},
		{"SRC-05 JSON as text", "text/plain", `[]`, `[]`},
		{"SRC-05 JSON in another spelling of UTF-8", "application/json;charset=UTF8", `"ü"`, `"ü"`},
		{"SRC-05 a form in ASCII", "application/x-www-form-urlencoded; charset=us-ascii", `a=b`, `{"a":"b"}`},
		{"SRC-05 a form", "application/x-www-form-urlencoded", "a=1&b=x%20y&a=2", `{"a":"1, 2","b":"x y"}`},
		{"SRC-05 a form with JSON in its payload", "application/x-www-form-urlencoded", "payload=%7B%22a%22%3A1%7D", `{"a":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc := expect.Value(ReadRequest(&http.Request{Header: header(tt.contentType), URL: &url.URL{RawQuery: "q=1&q=2"}}, []byte(tt.body), []string{"x-signature"}))(t)
			want := decoded(t, `{"headers":{"content-type":"`+tt.contentType+`","x-two":"a, b"},"query":{"q":"1, 2"},"body":`+tt.want+`}`)
			expect.Deep(t, "the document", any(doc), want)
		})
	}
	for name, tt := range map[string]struct {
		contentType, body string
		want              fault.Kind
	}{
		"not JSON":      {"application/json", `{"a":}`, fault.Invalid},
		"two values":    {"application/json", `{} {}`, fault.Invalid},
		"not UTF-8":     {"application/json", "\"\xff\"", fault.Invalid},
		"nested deeply": {"application/json", strings.Repeat("[", 100) + strings.Repeat("]", 100), fault.Invalid},
		"not a form":    {"application/x-www-form-urlencoded", "a=%zz", fault.Invalid},
		"other media":   {"application/xml", `<a/>`, fault.Unsupported},
		"other charset": {"application/json; charset=latin1", `{}`, fault.Unsupported},
		"other payload": {"application/x-www-form-urlencoded", "payload=x", fault.Invalid},
	} {
		t.Run("SRC-05 refused: "+name, func(t *testing.T) {
			_, err := ReadRequest(&http.Request{Header: header(tt.contentType), URL: &url.URL{}}, []byte(tt.body), nil)
			expect.Fault(t, "the request", err, tt.want)
		})
	}
}

func TestReadEnvelope(t *testing.T) {
	tests := []struct {
		name, body string
		from       From
		docs       []string
	}{
		{"SRC-01 EventBridge", `{"version":"0","id":"e","detail-type":"T","source":"aws.x","detail":{"a":1}}`, EventBridge, []string{`{"version":"0","id":"e","detail-type":"T","source":"aws.x","detail":{"a":1}}`}},
		{"SRC-01 SNS, its message decoded", `{"Type":"Notification","TopicArn":"arn","Message":"{\"a\":1}"}`, SNS, []string{`{"Type":"Notification","TopicArn":"arn","Message":{"a":1}}`}},
		{"SRC-01 SNS, its message a text", `{"Type":"Notification","TopicArn":"arn","Message":"hello"}`, SNS, []string{`{"Type":"Notification","TopicArn":"arn","Message":"hello"}`}},
		{"SRC-01 S3, a document for each record", `{"Records":[{"eventSource":"aws:s3","n":1},{"eventSource":"aws:s3","n":2}]}`, S3, []string{`{"eventSource":"aws:s3","n":1}`, `{"eventSource":"aws:s3","n":2}`}},
		{"SRC-06 S3, with the decoded key of the object", `{"Records":[{"eventSource":"aws:s3","s3":{"object":{"key":"a/red+flower%2B.jpg"}}}]}`, S3, []string{`{"eventSource":"aws:s3","s3":{"object":{"key":"a/red+flower%2B.jpg","urlDecodedKey":"a/red flower+.jpg"}}}`}},
		{"SRC-06 S3, a malformed key", `{"Records":[{"eventSource":"aws:s3","s3":{"object":{"key":"%zz"}}},{"eventSource":"aws:s3","s3":{"object":5}}]}`, S3, []string{`{"eventSource":"aws:s3","s3":{"object":{"key":"%zz"}}}`, `{"eventSource":"aws:s3","s3":{"object":5}}`}},
		{"SRC-01 the test of S3 says nothing", `{"Service":"Amazon S3","Event":"s3:TestEvent"}`, S3, nil},
		{"a CloudEvent of a direct sender", `{"uri":"event://a/b","data":{}}`, HTTP, nil},
		{"a CloudEvent that looks like one of EventBridge", `{"specversion":"1.0","source":"x","detail-type":"x","detail":1}`, HTTP, nil},
		{"records of another", `{"Records":[{"eventSource":"aws:ses"}]}`, HTTP, nil},
		{"no records", `{"Records":[]}`, HTTP, nil},
		{"not JSON", `{"detail-type"`, HTTP, nil},
		{"empty", ``, HTTP, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			from, docs, err := ReadEnvelope([]byte(tt.body))
			if err != nil || from != tt.from || len(docs) != len(tt.docs) {
				t.Fatalf("got %q, %v, %v", from, docs, err)
			}
			for i, want := range tt.docs {
				expect.Deep(t, "the document", docs[i], decoded(t, want))
			}
		})
	}
}

func FuzzReadEnvelope(f *testing.F) {
	f.Add([]byte(`{"version":"0","id":"e","detail-type":"T","source":"aws.x","detail":{"a":1}}`))
	f.Add([]byte(`{"Type":"Notification","TopicArn":"arn","Message":"{\"a\":1}"}`))
	f.Add([]byte(`{"Records":[{"eventSource":"aws:s3","n":1,"s3":{"object":{"key":"a+b"}}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		from, docs, err := ReadEnvelope(body)
		if from == HTTP && (len(docs) > 0 || err != nil) {
			t.Errorf("got %v and %v for a message that is not from a bus", docs, err)
		}
	})
}

// FuzzMap maps arbitrary documents with values that use every kind of pointer.
func FuzzMap(f *testing.F) {
	f.Add("application/json", []byte(`{"id":"a","at":"2026-11-21T09:30:00Z","list":[{"x":1}]}`), "/body/id", "/body/list/0/x")
	f.Add("application/x-www-form-urlencoded", []byte(`payload=%7B%7D&x=1`), "/headers", "/query/~1")
	f.Fuzz(func(t *testing.T, contentType string, body []byte, a, b string) {
		doc, err := ReadRequest(&http.Request{Header: http.Header{"Content-Type": {contentType}}, URL: &url.URL{}}, body, nil)
		if err != nil {
			return
		}
		first, err1 := ParseValue(a)
		second, err2 := ParseValue(b)
		if err1 != nil || err2 != nil {
			return
		}
		s := Source{Events: []Mapping{{Name: "x", Variables: map[string]Value{"a": first}, ID: second, Time: first, Data: Value{kind: isObject, members: map[string]Value{"a": first, "b": second}}}}}
		e, err := s.Map(doc)
		if (e == nil) == (err == nil) {
			t.Fatalf("got %v and %v", e, err)
		}
		if e != nil && (!json.Valid(e.Data) || e.ID == "") {
			t.Errorf("an event with the id %q and the data %q", e.ID, e.Data)
		}
	})
}
