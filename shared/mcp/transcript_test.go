package mcp

import (
	"encoding/json"
	"net/textproto"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// TestTranscripts plays the conversations in testdata/transcripts: each is what a
// client sends and what it gets, in files that also tell a reader what is on the wire.
//
//	-- POST --          a request: headers, an empty line, the body
//	-- 200 --           its response: headers that must be there, an empty line, the body
//	-- publish URI --   an event happens, with this payload
//
// A body is compared as JSON, where "<any>" fits anything and "<NAME>" any text,
// which $NAME stands for in what follows; that works in headers, too.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no transcripts")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			must(t, err)
			play(t, newFixture(t, nil), string(src))
		})
	}
}

func play(t *testing.T, f *fixture, src string) {
	names := map[string]string{}
	var got reply
	for _, part := range strings.Split("\n"+src, "\n-- ")[1:] {
		title, text, _ := strings.Cut(part, " --\n")
		for name, value := range names {
			text = strings.ReplaceAll(text, "$"+name, value)
		}
		head, body, _ := strings.Cut("\n"+text, "\n\n")
		verb, arg, _ := strings.Cut(title, " ")
		switch status, err := strconv.Atoi(verb); {
		case verb == "publish":
			f.publish(arg, strings.TrimSpace(text))
		case err == nil:
			if got.Status != status {
				t.Fatalf("status %d, want %d: %s", got.Status, status, got.Body)
			}
			for _, line := range strings.Split(head, "\n") {
				if name, want, ok := strings.Cut(line, ": "); ok {
					compareJSON(t, name, got.Header.Get(textproto.CanonicalMIMEHeaderKey(name)), want, names)
				}
			}
			if want := strings.TrimSpace(body); want == "" {
				if strings.TrimSpace(got.Body) != "" {
					t.Errorf("body %q, want none", got.Body)
				}
			} else {
				var a, b any
				if json.Unmarshal([]byte(got.Body), &a) != nil {
					a = got.Body // plain text
				}
				if err := json.Unmarshal([]byte(want), &b); err != nil {
					t.Fatalf("%v in %s", err, want)
				}
				compareJSON(t, "body", a, b, names)
			}
		default:
			var headers []string
			for _, line := range strings.Split(head, "\n") {
				if line != "" {
					headers = append(headers, line)
				}
			}
			got = f.do(verb, alice, strings.TrimSpace(body), headers...)
		}
	}
}

// compareJSON compares a value with the wanted one, and records the values of names in angle brackets.
func compareJSON(t *testing.T, at string, got, want any, names map[string]string) {
	t.Helper()
	switch want := want.(type) {
	case string:
		if strings.HasPrefix(want, "<") && strings.HasSuffix(want, ">") {
			name := strings.Trim(want, "<>")
			if text, ok := got.(string); ok && name != "any" {
				names[name] = text
			} else if name != "any" {
				t.Errorf("%s: %v is no text", at, got)
			}
			return
		}
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok || len(have) != len(want) {
			t.Errorf("%s: got %v, want %v", at, got, want)
			return
		}
		for k, v := range want {
			compareJSON(t, at+"."+k, have[k], v, names)
		}
		return
	case []any:
		have, ok := got.([]any)
		if !ok || len(have) != len(want) {
			t.Errorf("%s: got %v, want %v", at, got, want)
			return
		}
		for i, v := range want {
			compareJSON(t, at+"["+strconv.Itoa(i)+"]", have[i], v, names)
		}
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", at, got, want)
	}
}
