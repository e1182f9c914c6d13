package config

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// Fingerprint returns a hash of a workspace's backends with their settings, in their order. The hash is
// empty for a workspace without backends.
func (c *Config) Fingerprint(workspace string) string {
	var h hash.Hash
	for _, b := range c.Backends {
		if b.Workspace != workspace {
			continue
		}
		if h == nil {
			h = sha256.New()
		}
		writeBackend(h, b)
	}
	if h == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func writeBackend(h hash.Hash, b api.Backend) {
	fmt.Fprintf(h, "%q %q %q %q %q %t", b.Name, b.URL, b.Prefix, b.Scopes, b.ProtocolVersion, b.ForwardToken)
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		fmt.Fprintf(h, " %q %s", name, b.Headers[name].Fingerprint())
	}
	if o := b.OAuth; o != nil {
		fmt.Fprintf(h, " oauth %q %q %q %s", o.TokenURL, o.ClientID, o.Scopes, o.ClientSecret.Fingerprint())
	}
	fmt.Fprintln(h)
}

// changedBackends returns the workspaces whose backends differ between two configurations.
func changedBackends(before, after *Config) []string {
	var all []string
	for _, b := range slices.Concat(before.Backends, after.Backends) {
		all = append(all, b.Workspace)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(workspace string) bool {
		return before.Fingerprint(workspace) == after.Fingerprint(workspace)
	})
}
