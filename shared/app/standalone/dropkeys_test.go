package standalone

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// drops drops keys and fails unless that many were removed.
func drops(t *testing.T, data string, want int) {
	t.Helper()
	if got, err := DropKeys(t.Context(), data); err != nil || got != want {
		t.Errorf("removed %d keys, %v; want %d", got, err, want)
	}
}

func TestDropKeys(t *testing.T) {
	var settings Options
	e := serve(t, func(s *Options) { settings = *s })
	subscribed(t, e, "http://127.0.0.1:9/first", buildFinished)
	t.Run("given a running server, when keys are dropped, then it is refused", func(t *testing.T) {
		before, err := readSecrets(settings.Data)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DropKeys(t.Context(), settings.Data); !fault.Is(err, fault.Conflict) {
			t.Errorf("got %v, want a conflict", err)
		}
		after, err := readSecrets(settings.Data)
		if err != nil || !bytes.Equal(before.Private, after.Private) {
			t.Errorf("the keys have changed, %v", err)
		}
	})
	end(t, e)
	drops(t, settings.Data, 0) // the only key
	rotates := func() {
		t.Helper()
		if err := RotateKeys(settings.Data); err != nil {
			t.Fatal(err)
		}
	}
	rotates() // the second key seals nothing
	rotates()
	e, err := New(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	subscribed(t, e, "http://127.0.0.1:9/second", pullRequest)
	end(t, e)
	t.Run("given a key that seals nothing between two that do, when keys are dropped, then it alone is removed", func(t *testing.T) {
		drops(t, settings.Data, 1)
		drops(t, settings.Data, 0)
	})
	if e, err = New(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	opened := func(want int) {
		t.Helper()
		keys, err := readSecrets(settings.Data)
		if err != nil {
			t.Fatal(err)
		}
		opener, err := webhook.NewOpener(keys.Private)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = (&subscription.Lists{DB: e.db}).Each(t.Context(), "default", "anonymous", func(s *subscription.Subscription) error {
			n++
			_, err := opener.Open(t.Context(), s.Target.Secret, webhook.Binding(s.Binding()))
			return err
		})
		if err != nil || n != want {
			t.Errorf("opened the secrets of %d subscriptions, %v; want %d", n, err, want)
		}
	}
	opened(2)
	var uri string
	err = (&subscription.Lists{DB: e.db}).Each(t.Context(), "default", "anonymous", func(s *subscription.Subscription) error {
		if strings.HasSuffix(s.Target.URL, "/first") {
			uri = subscription.URI(s.ID)
		}
		return nil
	})
	if err != nil || uri == "" {
		t.Fatalf("no first subscription, %v", err)
	}
	if _, text := read(t, call(t, e, "", spec.MethodDeregister, map[string]any{"uri": uri})); strings.Contains(text, `"error"`) {
		t.Fatal(text)
	}
	end(t, e)
	t.Run("given a key whose subscriptions have ended, when keys are dropped, then it is removed and a server starts", func(t *testing.T) {
		drops(t, settings.Data, 1)
		starts(t, settings)
	})
	if e, err = New(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	opened(1)
	end(t, e)
}
