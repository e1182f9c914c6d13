package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// One more required member ends the webhook subscriptions to an event type. A reload and a start refuse the change until
// --allow-breaking confirms it.
func TestACatalogThatEndsSubscriptionsIsRefused(t *testing.T) {
	var settings standalone.Options
	log := new(expect.Buffer)
	e := serve(t, func(s *standalone.Options) {
		s.Log = (&Globals{LogLevel: "info", LogFormat: "json"}).logger(log)
		settings = *s
	})
	before := settings.Catalog
	with := func(old, next string) []byte {
		t.Helper()
		changed := bytes.Replace(before, []byte(old), []byte(next), 1)
		if bytes.Equal(changed, before) {
			t.Fatalf("the catalog has no %q", old)
		}
		return changed
	}
	breaking := with("required: [build, status]", "required: [build, status, branch]")
	use := func(src []byte) error {
		settings.Catalog = src
		return e.Reload(t.Context(), settings)
	}
	if err := use(breaking); err != nil {
		t.Fatalf("without subscriptions: %v", err)
	}
	expect.OK(t, use(before))
	registerHook(t, e)
	const want = "1 live webhook subscriptions: 1 in workspace default because ci.build_finished changed incompatibly (the payload schema changes at /required (branch)); --allow-breaking lets it"
	expect.Fault(t, "the reload", use(breaking), fault.Invalid, want)
	if err := use(with("description: A build", "description: Any build")); err != nil {
		t.Errorf("a change that ends no subscription: got %v, want no error", err)
	}
	log.Await(t, `"msg":"catalog reloaded","workspace":"*"`, 1)
	if n := strings.Count(log.String(), `"msg":"files reloaded","catalog_changed":true`); n != 3 {
		t.Errorf("%d reloads are logged, want 3:\n%s", n, log)
	}
	servertest.End(t, e)
	settings.Catalog = breaking
	refused, err := standalone.New(t.Context(), settings)
	if err == nil {
		servertest.End(t, refused)
		t.Fatal("the server started, want an error")
	}
	expect.Contains(t, "the error", err.Error(), want)
	settings.Catalog = before
	again := expect.Value(standalone.New(t.Context(), settings))(t)
	defer servertest.End(t, again)
	settings.Catalog, settings.AllowBreaking = breaking, true
	expect.OK(t, again.Reload(t.Context(), settings))
	log.Await(t, "ci.build_finished changed incompatibly", 1)
}

// registerHook registers a webhook of SEP-1803 at a server.
func registerHook(t *testing.T, e *standalone.Server) {
	t.Helper()
	c, err := client.Connect(t.Context(), e.URL, client.Options{Revision: string(spec.V20260728)})
	if err == nil {
		err = c.Call(t.Context(), spec.MethodRegister, map[string]any{
			"uris": []string{"event://ci/build-finished"}, "targetUri": "http://127.0.0.1:9/hook",
		}, nil)
	}
	expect.OK(t, err)
}
