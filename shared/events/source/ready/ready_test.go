package ready_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// variables matches the references to secrets in a configuration.
var variables = regexp.MustCompile(`"env:([A-Z_]+)"`)

func TestProviders(t *testing.T) {
	for _, p := range ready.Providers() {
		t.Run("SRC-06 "+p.Name+" explains each secret", func(t *testing.T) {
			if u, err := url.Parse(p.Documentation); err != nil || u.Scheme != "https" || p.Title == "" {
				t.Errorf("title %q, documentation %q", p.Title, p.Documentation)
			}
			text, steps := string(ready.Config(p)), strings.Join(p.Setup, "\n")
			for _, m := range variables.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(steps, m[1]) {
					t.Errorf("no step explains %s", m[1])
				}
			}
			for line := range strings.Lines(text) {
				if len(line) > 0 && strings.HasPrefix(line, "  # ") && len(line) > 121 {
					t.Errorf("a comment of %d characters: %s", len(line), line)
				}
			}
		})
	}
	if !slices.IsSorted(ready.Names()) || !slices.Contains(ready.Names(), "github") {
		t.Errorf("the names are %v", ready.Names())
	}
}

func TestSelect(t *testing.T) {
	t.Run("SRC-06 the named providers are returned once each, in the order of the names", func(t *testing.T) {
		chosen, err := ready.Select("stripe", "github", "stripe")
		if err != nil || len(chosen) != 2 || chosen[0].Name != "stripe" || chosen[1].Name != "github" {
			t.Errorf("%v, %v", chosen, err)
		}
	})
	t.Run("SRC-06 an unknown provider is refused, and the error lists the known ones", func(t *testing.T) {
		_, err := ready.Select("github", "gitea")
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), `"gitea"`) || !strings.Contains(fault.Public(err), "github, linear") {
			t.Errorf("%v", err)
		}
	})
}

func TestWrite(t *testing.T) {
	all := ready.Providers()
	files := func(dir string) (texts [2]string) {
		for i, name := range []string{ready.CatalogFile, ready.ConfigFile} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = string(text)
		}
		return texts
	}
	t.Run("SRC-06 all providers go into one catalog and one configuration", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new", "folder")
		if err := ready.Write(dir, all, false); err != nil {
			t.Fatal(err)
		}
		texts := files(dir)
		cat, err := catalog.Parse([]byte(texts[0]))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"github.pull_request", "stripe.customer.subscription", "cloudwatch.alarm"} {
			if cat.ByName(name) == nil {
				t.Errorf("the catalog lacks %s", name)
			}
		}
		for _, p := range all {
			if !strings.Contains(texts[1], "# "+p.Title+", "+p.Documentation) {
				t.Errorf("the configuration does not name %s", p.Title)
			}
		}
	})
	t.Run("SRC-06 existing files are kept unless force is set", func(t *testing.T) {
		dir := t.TempDir()
		own := filepath.Join(dir, ready.ConfigFile)
		if err := os.WriteFile(own, []byte("keys: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := ready.Write(dir, all[:1], false)
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Public(err), own+" exists") || !strings.Contains(fault.Public(err), "--force") {
			t.Errorf("%v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, ready.CatalogFile)); err == nil {
			t.Error("the other file was written")
		}
		if text, _ := os.ReadFile(own); string(text) != "keys: []\n" {
			t.Errorf("the file is now %q", text)
		}
		if err := ready.Write(dir, all[:1], true); err != nil {
			t.Fatal(err)
		}
		if got := files(dir); !strings.HasPrefix(got[1], "# Sources") {
			t.Errorf("by force: %q", got[1])
		}
	})
	t.Run("SRC-06 an empty list of providers is refused", func(t *testing.T) {
		if err := ready.Write(t.TempDir(), nil, false); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v", err)
		}
	})
}
