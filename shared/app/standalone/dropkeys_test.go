package standalone

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// drops calls DropKeys and checks the number of removed keys.
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
	stored := store.Item{Key: store.Key{Table: store.Deliveries, Partition: "d", Sort: "-"}}
	err := (&subscription.Lists{DB: e.db}).Each(t.Context(), "default", "anonymous", func(s *subscription.Subscription) (err error) {
		stored.Value, err = json.Marshal(s.Target)
		return err
	})
	if err != nil || stored.Value == nil {
		t.Fatalf("no subscription, %v", err)
	}
	if err := e.db.Write(t.Context(), store.Put(stored)); err != nil {
		t.Fatal(err)
	}
	end(t, e)
	drops(t, settings.Data, 0) // the server has only one key
	rotates := func() {
		t.Helper()
		if err := RotateKeys(settings.Data); err != nil {
			t.Fatal(err)
		}
	}
	rotates()
	rotates()
	if e, err = New(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	subscribed(t, e, "http://127.0.0.1:9/second", pullRequest)
	end(t, e)
	t.Run("given a stored delivery with a copy of a secret, when keys are dropped, then the key that opens it stays", func(t *testing.T) {
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
	if err := e.db.Write(t.Context(), store.Delete(stored.Key)); err != nil {
		t.Fatal(err)
	}
	end(t, e)
	t.Run("given only secrets of subscriptions, when keys are dropped, then the newest key stays and a server starts", func(t *testing.T) {
		drops(t, settings.Data, 1)
		starts(t, settings)
	})
	if e, err = New(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	opened(2)
	end(t, e)
}
