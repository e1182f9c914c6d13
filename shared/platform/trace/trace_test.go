package trace

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// OPS-13: Parse accepts and ignores the headers that W3C Trace Context says.
func TestParse(t *testing.T) {
	long := strings.Repeat("v", 200)                                   // two of them are within the bound
	many := strings.TrimSuffix(strings.Repeat("abcdefgh=x,", 32), ",") // a key more than once
	var entries []string
	for i := range 32 {
		entries = append(entries, "k"+string(rune('a'+i%26))+string(rune('a'+i/26))+"="+strings.Repeat("x", 20))
	}
	for name, tc := range map[string]struct{ parent, state, wantParent, wantState string }{
		"both":                    {parent, "a=1,b@v=2", parent, "a=1,b@v=2"},
		"not sampled":             {parent[:54] + "0", "", parent[:54] + "0", ""},
		"flags of later versions": {parent[:53] + "fb", "", parent, ""},
		"a later version":         {"cc" + parent[2:] + "-what-comes", "", parent, ""},
		"00 with more":            {parent + "-x", "a=1", "", ""},
		"a later one, run on":     {"cc" + parent[2:] + "x", "", "", ""},
		"version ff":              {"ff" + parent[2:], "", "", ""},
		"capitals":                {strings.ToUpper(parent), "", "", ""},
		"no trace id":             {"00-" + strings.Repeat("0", 32) + parent[35:], "", "", ""},
		"no parent id":            {parent[:36] + strings.Repeat("0", 16) + "-01", "", "", ""},
		"other separators":        {strings.ReplaceAll(parent, "-", "_"), "", "", ""},
		"flags in no hexadecimal": {parent[:53] + "0x", "", "", ""},
		"too short":               {parent[:54], "", "", ""},
		"nothing":                 {"", "a=1", "", ""},
		"a malformed state":       {parent, "a", parent, ""},
		"a key twice":             {parent, many, parent, ""},
		"a large entry":           {parent, "a=1,b=" + long + ",c=" + long + ",d=" + long + ",e=5", parent, "a=1,c=" + long + ",d=" + long + ",e=5"},
		"many entries":            {parent, strings.Join(entries, ","), parent, strings.Join(entries[:20], ",")},
		"far too much":            {parent, "a=" + strings.Repeat(" ", maxRead), parent, ""},
	} {
		if got := Parse(tc.parent, tc.state); got.Parent != tc.wantParent || got.State != tc.wantState || len(got.State) > maxState {
			t.Errorf("%s: got %+v (%d bytes), want %q and %q", name, got, len(got.State), tc.wantParent, tc.wantState)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(parent, "a=1,b=2")
	f.Add("cc"+parent[2:]+"-", " , ")
	f.Fuzz(func(t *testing.T, parent, state string) {
		c := Parse(parent, state)
		if len(c.State) > maxState || c.Parent == "" && c.State != "" || Parse(c.Parent, c.State) != c {
			t.Errorf("got %+v of %q, %q", c, parent, state)
		}
		if c.Parent != "" && !c.toRemote().IsValid() {
			t.Errorf("got the invalid context %+v", c)
		}
	})
}

// OPS-13: without a tracer and a trace an event costs no allocations, and a trace of the publisher continues.
func TestOffCostsNothing(t *testing.T) {
	var off *Tracer
	in, out := http.Header{"Content-Type": {"application/json"}}, http.Header{}
	if n := testing.AllocsPerRun(100, func() {
		var spans Spans
		c := spans.Add(off.Start(FromHeader(in), "publish", Producer))
		expect.True(t, "a span without a tracer does not record", !off.Continue(c, "fanout", Consumer).Recording())
		span := off.Continue(c, "attempt", Client)
		span.Context.AddTo(out)
		span.End("timeout")
		spans.End("")
	}); n != 0 || len(out) > 0 {
		t.Errorf("got %v allocations and the headers %v, want none", n, out)
	}
	c := Parse(parent, "a=1")
	expect.Equal(t, "the context of a span without a tracer", off.Start(c, "publish", Producer).Context, c)
	expect.Equal(t, "the context of a continued span without a tracer", off.Continue(c, "attempt", Client).Context, c)
}
