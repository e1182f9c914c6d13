package match

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const build = "event://ci/build-finished"

// hostile returns filters with fifty values each. The beginnings of the values match everywhere in the text of hostilePayload,
// but no value matches as a whole.
func hostile() []Filter {
	var values []json.RawMessage
	for i := range maxGlobs {
		values = append(values, fmt.Appendf(nil, `"*%sb*"`, strings.Repeat("a", 400+i)))
	}
	return []Filter{{Pointer: "/text", Values: values}}
}

func hostilePayload(size int) *event.Event {
	return &event.Event{URI: build, Data: fmt.Appendf(nil, `{"text":"%s"}`, strings.Repeat("a", size)+"c")}
}

// A poll's filters may take some passes over the payloads for each of their values, not
// one for each of a value's characters: 400 times as many.
func TestFiltersTakeLinearTime(t *testing.T) {
	const events, size, passes = 10, 230_000, 40
	s := Selection{Filters: hostile()}
	s.Entry = parse(t, patternCatalog).ByName("ci.build_finished")
	text := []byte(strings.Repeat("a", size))
	var took, linear time.Duration
	for range 3 { // one that was not interrupted is enough
		began := time.Now()
		found := 0
		for range events * maxGlobs {
			for _, c := range text {
				if c == 'b' {
					found++
				}
			}
		}
		linear = time.Since(began)
		began = time.Now()
		for range events {
			e := hostilePayload(size)
			e.Name = s.Entry.Name
			if s.Wants(e) {
				found++
			}
		}
		if took = time.Since(began); found > 0 {
			t.Fatal("a filter let through what it must not")
		}
		if took < passes*linear {
			return
		}
	}
	t.Errorf("the filters took %v; %d passes over the payloads take %v", took, events*maxGlobs, linear)
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAPayloadIsDecodedOncePerEvent(t *testing.T) {
	e := hostilePayload(230_000)
	filters := []Filter{{Pointer: "/text", Values: []json.RawMessage{[]byte(`"x"`)}}}
	once := allocated(func() { (&Payload{Event: e}).Passes(filters) })
	for name, ask := range map[string]func(){
		"300 subscribers": func() {
			p := Payloads([]event.Event{*e})[0]
			var asking sync.WaitGroup
			for range 300 {
				asking.Go(func() { p.Passes(filters) })
			}
			asking.Wait()
		},
		"300 streams": func() {
			s := Selection{Filters: filters, Entry: parse(t, patternCatalog).ByName("ci.build_finished")}
			e.Name = s.Entry.Name
			for range 300 {
				s.Wants(e)
			}
		},
	} {
		if all := allocated(ask); all > 10*once {
			t.Errorf("%s allocated %d bytes, one %d", name, all, once)
		}
	}
}

func TestAllFiltersOfASubscriptionAreBounded(t *testing.T) {
	texts := func(n int, format string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	entry := parse(t, `
events:
  - {name: a.b, uri: event://a/b, filters: {a: /a, b: /b, c: /c, d: /d, e: /e}, payloadSchema: {}}`).Entries()[0]
	for name, tc := range map[string]struct{ arguments, want string }{
		"fifty globs":               {`{"a":` + texts(50, `"x*%d"`) + `}`, ""},
		"globs over several":        {`{"a":` + texts(30, `"x*%d"`) + `,"b":` + texts(21, `"x*%d"`) + `}`, "51 values with *, 50 are allowed"},
		"globs written as escapes":  {`{"a":` + texts(30, `"x\u002a%d"`) + `,"b":` + texts(21, `"x*%d"`) + `}`, "51 values with *"},
		"values over several":       {`{"a":` + texts(50, `%d`) + `,"b":` + texts(50, `%d`) + `,"c":` + texts(50, `%d`) + `,"d":` + texts(50, `%d`) + `,"e":1}`, "201 values, 200 are allowed"},
		"as many values as allowed": {`{"a":` + texts(50, `%d`) + `,"b":` + texts(50, `%d`) + `,"c":` + texts(50, `%d`) + `,"d":` + texts(50, `%d`) + `}`, ""},
	} {
		_, err := Select(entry, json.RawMessage(tc.arguments))
		if tc.want == "" && err != nil || tc.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), tc.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// FuzzGlob holds globs to regular expressions.
func FuzzGlob(f *testing.F) {
	for _, x := range [][2]string{{"a*b", "axxb"}, {"***", ""}, {"a*a", "a"}, {"*ab*ab", "abab"}, {"*aab*b", "aaabb"}, {"é*", "éa"}} {
		f.Add(x[0], x[1])
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		pattern, s = strings.ToValidUTF8(pattern, "?"), strings.ToValidUTF8(s, "?")
		if !strings.Contains(pattern, "*") || len(pattern) > 64 || len(s) > 256 {
			return
		}
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		want := regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(s)
		if got := glob(strings.Split(pattern, "*")).matches(s); got != want {
			t.Fatalf("%q matches %q: got %v, want %v", pattern, s, got, want)
		}
	})
}
