package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestPlaceholdersAreFilledIn(t *testing.T) {
	v := values{id: "a-1", uri: "event://x", payload: `{"p":1}`, target: "http://t", n: 7}
	for in, want := range map[string]string{
		"":                                "",
		"plain":                           "plain",
		`{"id":"{{id}}","d":{{payload}}}`: `{"id":"a-1","d":{"p":1}}`,
		"{{ uri }}{{target}}{{n}}":        "event://xhttp://t7",
		"{{unknown}} {{id":                "{{unknown}} {{id",
		`{"a":{"b":{{n}}}}`:               `{"a":{"b":7}}`,
	} {
		expect.Equal(t, fmt.Sprintf("%q", in), string(parseTemplate(in).append(nil, v)), want)
	}
}

func TestTextAtPointer(t *testing.T) {
	const doc = `{"id":"a","n":1,"in":{"x/y":["p","q"],"~":"t"}}`
	for pointer, want := range map[string]string{
		"/id": "a", "/n": "", "/in/x~1y/1": "q", "/in/x~1y/2": "", "/in/x~1y/-1": "", "/in/~0": "t", "/no": "", "/id/x": "",
	} {
		expect.Equal(t, pointer, text([]byte(doc), pointer), want)
	}
	expect.Equal(t, "text in a document that is not JSON", text([]byte("{"), "/id"), "")
}

func TestReadAdapter(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "adapter.yaml")
		expect.OK(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	a, err := ReadAdapter(write(`{"name":"other","publish":{"url":"http://127.0.0.1:9/p","headers":{"A":"b"},"body":"{{id}}"},"received":{"pointer":"/id"}}`))
	if err != nil || a.Name != "other" || a.Publish.Headers["A"] != "b" || a.Received.Pointer != "/id" {
		t.Errorf("got %+v, %v", a, err)
	}
	for name, text := range map[string]string{
		"nothing":              ``,
		"an unknown member":    "publish: {url: 'http://x', body: '{{id}}'}\nreceived: {header: a}\nspeed: 9",
		"no URL":               "publish: {body: '{{id}}'}\nreceived: {header: a}",
		"another scheme":       "publish: {url: 'ftp://x', body: '{{id}}'}\nreceived: {header: a}",
		"no id":                "publish: {url: 'http://x', body: '{{n}}'}\nreceived: {header: a}",
		"no way to find ids":   "publish: {url: 'http://x', body: '{{id}}'}",
		"two ways to find ids": "publish: {url: 'http://x', body: '{{id}}'}\nreceived: {header: a, pointer: /b}",
		"a bad register URL":   "publish: {url: 'http://x', body: '{{id}}'}\nregister: {url: x}\nreceived: {header: a}",
	} {
		if _, err := ReadAdapter(write(text)); err == nil {
			t.Errorf("%s is allowed", name)
		}
	}
	if _, err := ReadAdapter("no such file"); err == nil {
		t.Error("a missing file is allowed")
	}
}
