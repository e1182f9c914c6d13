package apply

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	plain     = "events: [{name: a.b, uri: 'event://a/b'}]"
	chatter   = "events: [{name: said, uri: 'event://conversation/user-message', access: {scopes: [chat]}}]"
	unruled   = "events: [{name: said, uri: 'event://conversation/user-message'}]"
	talk      = "conversation: {userMessages: true, events: {userMessage: true}}"
	elsewhere = "conversation: {userMessages: true, events: {userMessage: true, workspace: other}}"
)

func database(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func files(t *testing.T, cat, conf string) Files {
	t.Helper()
	var f Files
	if cat != "" {
		f.Catalogs = map[string]*catalog.Catalog{"default": expect.Value(catalog.Parse([]byte(cat)))(t)}
	}
	if conf != "" {
		f.Config = expect.Value(config.Parse([]byte(conf)))(t)
	}
	return f
}

// EVX-17, CNV-07: if one file is refused, none of them is stored. A file may also be refused because it does not fit to a file
// that was applied earlier.
func TestAllFilesOrNone(t *testing.T) {
	for name, tc := range map[string]struct {
		before, next Files
		endings      []lifecycle.Ending
		secret       error
		want         string
	}{
		"good ones":                         {files(t, "", ""), files(t, chatter, talk), nil, nil, ""},
		"no rule":                           {files(t, "", ""), files(t, unruled, talk), nil, nil, "needs an access rule"},
		"no rule, of the stored catalog":    {files(t, unruled, ""), files(t, "", talk), nil, nil, "needs an access rule"},
		"no rule, of the stored config":     {files(t, chatter, talk), files(t, unruled, ""), nil, nil, "needs an access rule"},
		"a workspace without a catalog":     {files(t, "", ""), files(t, chatter, elsewhere), nil, nil, "the catalog of workspace other"},
		"a secret that is not there":        {files(t, "", ""), files(t, plain, "keys: []"), nil, errors.New("no secret"), "no secret"},
		"the end of subscriptions":          {files(t, chatter, ""), files(t, plain, ""), []lifecycle.Ending{{Workspace: "default", Reason: "x", Subscriptions: 3}}, nil, "would end 3 live"},
		"no subscriptions that could end":   {files(t, chatter, ""), files(t, plain, ""), nil, nil, ""},
		"a secret that was there before it": {files(t, "", "keys: []"), files(t, plain, ""), nil, errors.New("no secret"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			db := database(t)
			expect.OK(t, expect.ErrOf((&Target{DB: db}).Apply(t.Context(), tc.before)))
			target := &Target{
				DB:      db,
				Endings: func(context.Context, catalog.Source) ([]lifecycle.Ending, error) { return tc.endings, nil },
				Check:   func(context.Context, *config.Config) error { return tc.secret },
			}
			done, err := target.Apply(t.Context(), tc.next)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			expect.Equal(t, "CatalogChanged", done.CatalogChanged(), err == nil)
			if tc.next.AllowBreaking = true; len(tc.endings) > 0 {
				expect.OK(t, expect.ErrOf(target.Apply(t.Context(), tc.next)), "with AllowBreaking")
			}
		})
	}
}

// If the subscriptions cannot be read, a change that could end subscriptions must be confirmed.
func TestEventTypesThatCouldEndSubscriptions(t *testing.T) {
	target := NewDeployment(database(t), false)
	expect.OK(t, expect.ErrOf(target.Apply(t.Context(), files(t, chatter, ""))))
	if _, err := target.Apply(t.Context(), files(t, plain, "")); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "said (it is removed); use --allow-breaking") {
		t.Errorf("got %v", err)
	}
	counting := NewDeployment(target.DB, true) // it counts 0 affected subscriptions
	expect.OK(t, expect.ErrOf(counting.Apply(t.Context(), files(t, plain, ""))))
}

// With All, the given files replace all earlier ones, so that a file that is missing now is removed.
func TestWhatIsNotGivenIsRemoved(t *testing.T) {
	target := NewDeployment(database(t), false)
	all := files(t, plain, talk)
	all.Catalogs["default"] = files(t, chatter, "").Catalogs["default"]
	all.Catalogs[catalog.Shared] = files(t, plain, "").Catalogs["default"]
	all.All, all.AllowBreaking = true, true
	expect.OK(t, expect.ErrOf(target.Apply(t.Context(), all)))
	delete(all.Catalogs, "default")
	expect.Error(t, "CNV-07: the shared catalog", expect.ErrOf(target.Apply(t.Context(), all)), "declares no event type")
	all.Config = nil
	done, err := target.Apply(t.Context(), all)
	if err != nil || !done.ConfigChanged || !done.CatalogChanged() {
		t.Fatalf("got %+v, %v", done, err)
	}
	if c, err := catalog.Load(t.Context(), target.DB, "default"); err != nil || c.ByName("a.b") == nil {
		t.Errorf("the workspace has the catalog %v, %v; want the shared one", c, err)
	}
	expect.True(t, "conversations are disabled", !expect.Value(config.Load(t.Context(), target.DB))(t).Conversation.Enabled())
	if done, err = target.Apply(t.Context(), all); err != nil || done.ConfigChanged || done.CatalogChanged() {
		t.Errorf("after applying the same files again: got %+v, %v; want no changes", done, err)
	}
}

// AUT-02: a configuration without a section for keys, such as the one of ready-made sources, does not revoke the keys of a deployment.
func TestADeploymentKeepsItsKeys(t *testing.T) {
	const keys = "keys: [{principal: a, scopes: ['events:read'], sha256: '" + sum + "'}]"
	for next, want := range map[string]string{
		"# nothing yet": "revoke all 1 keys", "quotas: [{streams: 5}]": "revoke all 1 keys", "keys: []": "", keys: "",
	} {
		target := NewDeployment(database(t), false)
		expect.OK(t, expect.ErrOf(target.Apply(t.Context(), files(t, plain, keys))))
		f := files(t, "", next)
		_, err := target.Apply(t.Context(), f)
		if (err == nil) != (want == "") || err != nil && !(fault.Is(err, fault.Invalid) && strings.Contains(err.Error(), want)) {
			t.Errorf("AUT-02 %q: got %v, want %q", next, err, want)
		}
		f.AllowBreaking = true
		expect.OK(t, expect.ErrOf(target.Apply(t.Context(), f)))
	}
}

// A stand-alone server refuses it, too. Programs may truncate a file before they rewrite it.
func TestADeploymentKeepsItsConfigurationIfTheFileIsEmpty(t *testing.T) {
	target := NewDeployment(database(t), false)
	expect.OK(t, expect.ErrOf(target.Apply(t.Context(), files(t, plain, "quotas: [{streams: 5}]"))))
	empty := files(t, plain, "")
	empty.Config, empty.AllowBreaking = expect.Value(config.ParseFile("config.yaml", []byte(" \n")))(t), true
	expect.Fault(t, "an empty file", expect.ErrOf(target.Apply(t.Context(), empty)), fault.Invalid, "has become empty")
	expect.OK(t, expect.ErrOf(target.Apply(t.Context(), files(t, plain, "# nothing"))), "a comment")
}

const sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestADeploymentRefusesCommands(t *testing.T) {
	t.Run("GWN-26 a backend that is a command is refused on AWS when it is applied, and named", func(t *testing.T) {
		db := database(t)
		_, err := NewDeployment(db, false).Apply(t.Context(), files(t, "", "backends: [{name: files, command: [npx, server]}]"))
		expect.Fault(t, "the command", err, fault.Invalid)
		if err != nil && !strings.Contains(err.Error(), "backend files: a command needs a stand-alone server") {
			t.Errorf("got %v", err)
		}
		c := expect.Value(config.Load(t.Context(), db))(t)
		expect.Len(t, "the backends", c.Backends, 0)
	})
}

func TestFilesAreAppliedAllOrNone(t *testing.T) {
	db := database(t)
	target := &Target{DB: db}
	expect.OK(t, expect.ErrOf(target.Apply(t.Context(), files(t, plain, "keys: []"))))
	// Hashes cannot be compressed, so these keys are too large for one item.
	var keys strings.Builder
	keys.WriteString("keys:\n")
	for range 7500 {
		sum := make([]byte, 32)
		_, _ = rand.Read(sum)
		fmt.Fprintf(&keys, "  - {principal: %s, scopes: [], sha256: %s}\n", rand.Text(), hex.EncodeToString(sum))
	}
	next := files(t, chatter, keys.String())
	next.AllowBreaking = true
	_, err := target.Apply(t.Context(), next)
	t.Run("EVS-14 a configuration that is too large is refused", func(t *testing.T) {
		expect.Fault(t, "the text", err, fault.TooLarge)
	})
	t.Run("EVS-14 the catalog that came with it is not in use", func(t *testing.T) {
		expect.Equal(t, "the stored catalog", string(expect.Value(catalog.Load(t.Context(), db, "default"))(t).Text()), plain)
	})
}
