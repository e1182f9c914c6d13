package config

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"maps"
	"slices"
)

// Fingerprints names by workspace which backends belong to it and how they are asked, in their order:
// the same ones have the same. A workspace without backends has none.
func (c *Config) Fingerprints() map[string]string {
	sums := map[string]hash.Hash{}
	for _, b := range c.Backends {
		h := sums[b.Workspace]
		if h == nil {
			h = sha256.New()
			sums[b.Workspace] = h
		}
		b.write(h)
	}
	out := map[string]string{}
	for workspace, h := range sums {
		out[workspace] = base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	}
	return out
}

func (b Backend) write(h hash.Hash) {
	fmt.Fprintf(h, "%q %q %q %q %q %t", b.Name, b.URL, b.Prefix, b.Scopes, b.ProtocolVersion, b.ForwardToken)
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		fmt.Fprintf(h, " %q", name)
		b.Headers[name].write(h)
	}
	if o := b.OAuth; o != nil {
		fmt.Fprintf(h, " oauth %q %q %q", o.TokenURL, o.ClientID, o.Scopes)
		o.ClientSecret.write(h)
	}
	fmt.Fprintln(h)
}

func (v Value) write(h hash.Hash) { fmt.Fprintf(h, " %q %q %q", v.text, v.env, v.ssm) }

// changedBackends are the workspaces whose backends are not the same in both.
func changedBackends(before, after *Config) []string {
	was, is := before.Fingerprints(), after.Fingerprints()
	all := maps.Clone(was)
	maps.Copy(all, is)
	maps.DeleteFunc(all, func(workspace, _ string) bool { return was[workspace] == is[workspace] })
	return slices.Sorted(maps.Keys(all))
}
