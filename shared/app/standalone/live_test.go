package standalone

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
)

func TestLiveStreamsEndWithTheirKey(t *testing.T) {
	t.Parallel() // the server checks keys every five seconds
	operators := func(names ...string) *config.Config {
		text := "keys:\n"
		for _, name := range names {
			text += fmt.Sprintf("  - {principal: %s, sha256: %s, scopes: [events:operate]}\n", name, hash(name))
		}
		return configured(t, text)
	}
	var o Options
	s := serve(t, func(with *Options) {
		with.Auth, with.Config = auth.ModeKeys, operators("removed", "kept")
		o = *with
	})
	open := func(who string) (ended chan bool) {
		resp := request(t, s, who, "GET", "/admin/v1/live", "", "")
		t.Cleanup(func() { _ = resp.Body.Close() })
		ended = make(chan bool)
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
		return ended
	}
	kept, removed := open("kept"), open("removed")
	o.Config = operators("kept")
	if err := s.Reload(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	select {
	case <-removed:
	case <-kept:
		t.Error("AUT-04 the stream of a key that is still there ended")
	case <-time.After(30 * time.Second):
		t.Error("AUT-04 the stream of a removed key is open after 30 s")
	}
}
