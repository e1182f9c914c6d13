package admintest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/operate/admin/admintest"
	"github.com/mcp-events/mcpevents/test/expect"
)

const document = `{
 "openapi": "3.1.0",
 "paths": {
  "/things/{id}": {"get": {"responses": {
   "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}, "text/event-stream": {"schema": {"type": "string"}}}},
   "204": {"description": "none"},
   "default": {"$ref": "#/components/responses/Problem"}
  }}},
  "/switches/{name}": {"put": {"responses": {"204": {"description": "done"}}}}
 },
 "components": {
  "responses": {"Problem": {"content": {"application/problem+json": {"schema": {"type": "object", "required": ["title"]}}}}},
  "schemas": {"Thing": {"type": "object", "required": ["at"], "properties": {"at": {"type": "string", "format": "date-time"}}, "additionalProperties": false}}
 }
}`

func TestContract(t *testing.T) {
	c := expect.Value(admintest.Parse([]byte(document)))(t)
	const json, problem = "application/json; charset=utf-8", "application/problem+json"
	for name, a := range map[string]struct {
		method, path, kind, body string
		status                   int
		fault                    string // a part of the error, or empty if the answer is valid
	}{
		"as described":              {"GET", "/things/1", json, `{"at":"2026-11-23T10:00:00Z"}`, 200, ""},
		"a stream":                  {"GET", "/things/1", "text/event-stream", "data: {}\n\n", 200, ""},
		"without content":           {"GET", "/things/1", "", "", 204, ""},
		"a shared answer":           {"GET", "/things/1", problem, `{"title":"refused"}`, 400, ""},
		"a name of several parts":   {"PUT", "/switches/workspace/a", "", "", 204, ""},
		"a member that is missing":  {"GET", "/things/1", json, `{}`, 200, "at"},
		"a member that is not said": {"GET", "/things/1", json, `{"at":"2026-11-23T10:00:00Z","more":1}`, 200, "more"},
		"a format":                  {"GET", "/things/1", json, `{"at":"yesterday"}`, 200, "date-time"},
		"a shared answer's member":  {"GET", "/things/1", problem, `{}`, 400, "title"},
		"another content type":      {"GET", "/things/1", "text/html", `<p>`, 200, "text/html"},
		"no JSON":                   {"GET", "/things/1", json, `{`, 200, "EOF"},
		"a body where none is":      {"PUT", "/switches/all", json, `{}`, 204, "application/json"},
		"a status":                  {"PUT", "/switches/all", problem, `{}`, 400, "400"},
		"a method":                  {"POST", "/things/1", json, `{}`, 200, "post /things/1"},
		"a path":                    {"GET", "/things/1/2", json, `{}`, 200, "/things/1/2"},
	} {
		err := c.Check(a.method, a.path, &http.Response{StatusCode: a.status, Header: http.Header{"Content-Type": {a.kind}}}, []byte(a.body))
		if (err == nil) != (a.fault == "") || err != nil && !strings.Contains(err.Error(), a.fault) {
			t.Errorf("%s: got %v, want %q", name, err, a.fault)
		}
	}
	if _, err := admintest.Parse([]byte(strings.Replace(document, "schemas/Thing", "schemas/Nothing", 1))); err == nil {
		t.Error("a document with a schema that is missing is read")
	}
}
