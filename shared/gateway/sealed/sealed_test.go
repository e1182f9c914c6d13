package sealed

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-17: a requestState is valid for an hour, for the same caller and under the same key.
func TestRequestStateExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := expect.Value(NewStates(make([]byte, 32)))(t)
		sealed := s.Seal([]byte("state"), []byte("alice"))
		expect.Error(t, "the state of another principal", expect.ErrOf(s.Open(sealed, []byte("bob"))))
		other := expect.Value(NewStates([]byte("another key of thirty-two bytes!")))(t)
		expect.Error(t, "the state with another key", expect.ErrOf(other.Open(sealed, []byte("alice"))))
		time.Sleep(StateLife - time.Second)
		expect.Equal(t, "the state in time", string(expect.Value(s.Open(sealed, []byte("alice")))(t)), "state")
		time.Sleep(time.Second)
		expect.Error(t, "the state after an hour", expect.ErrOf(s.Open(sealed, []byte("alice"))))
	})
}

var principal = auth.Principal{ID: "ann", Workspace: auth.DefaultWorkspace}

// FuzzTaskID checks that a task's id returns to the backend byte for byte, and that no other text is opened as an id.
func FuzzTaskID(f *testing.F) {
	f.Add("b#x", []byte(`"1"`), "AAAA")
	f.Add("b#\u00e9", []byte(`"\u00e9\ud83d\ude00"`), strings.Repeat("A", 80))
	ids := expect.Value(NewTaskIDs([]byte("0123456789abcdef0123456789abcdef")))(f)
	f.Fuzz(func(t *testing.T, server string, own []byte, other string) {
		if strings.Contains(server, "\n") || len(own) > 1<<10 || len(server) > 128 {
			return
		}
		id := ids.Seal(principal, server, own)
		if gotServer, gotOwn, ok := ids.Open(principal, id); !ok || gotServer != server || string(gotOwn) != string(own) {
			t.Fatalf("got %q, %q, %t, want %q, %q", gotServer, gotOwn, ok, server, own)
		}
		for _, forged := range []string{other, id + other, other + id, id[:len(id)-1]} {
			if server, own, ok := ids.Open(principal, forged); ok && forged != id {
				t.Fatalf("%q opens as %q, %q", forged, server, own)
			}
		}
	})
}
