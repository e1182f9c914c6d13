package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// CheckSources does what [CheckCatalog] does, for all sources of a workspace.
func CheckSources(cat *catalog.Catalog, workspace string, sources []source.Source) error {
	var all []error
	for _, s := range sources {
		if s.Workspace == workspace {
			all = append(all, CheckCatalog(cat, s))
		}
	}
	return errors.Join(all...)
}

// CheckCatalog checks the mappings of a source against the catalog of its workspace. It reports, each with its line,
// event types that do not exist, and variables that are in the URI template but not in the mapping, or the other way
// round. Errors are of kind fault.Invalid.
func CheckCatalog(cat *catalog.Catalog, s source.Source) error {
	var all []error
	for _, m := range s.Events {
		at := fmt.Sprintf("line %d: source %s: %s", m.Line, s.Name, m.Name)
		entry := cat.ByName(m.Name)
		if entry == nil {
			all = append(all, fault.New(fault.Invalid, "%s is not an event type in the catalog of workspace %s", at, s.Workspace))
			continue
		}
		given := map[string]string{}
		for name := range m.Variables {
			given[name] = ""
		}
		known := "none"
		if names := entry.Variables(); len(names) > 0 {
			known = strings.Join(names, ", ")
		}
		switch missing := missingVariables(entry, given); len(missing) {
		case 0:
		case 1:
			all = append(all, fault.New(fault.Invalid, "%s: the variable %s is missing", at, missing[0]))
		default:
			all = append(all, fault.New(fault.Invalid, "%s: the variables %s are missing", at, strings.Join(missing, ", ")))
		}
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if !slices.Contains(entry.Variables(), name) {
				all = append(all, fault.New(fault.Invalid, "%s: the event type does not have %s (it has: %s); delete it from variables", at, name, known))
			}
		}
	}
	return errors.Join(all...)
}

func missingVariables(entry *catalog.Entry, given map[string]string) []string {
	var missing []string
	for _, name := range entry.Variables() {
		if _, ok := given[name]; !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// CheckSecrets looks up the secrets of all sources. If a secret does not exist, or its scheme cannot use it, the
// error is of kind fault.Invalid.
func CheckSecrets(ctx context.Context, sources []source.Source, lookup func(context.Context, secret.Value) (string, error)) error {
	for _, s := range sources {
		if len(s.Secrets) == 0 {
			continue
		}
		if _, err := verifier(ctx, s, lookup); err != nil {
			return fault.Wrap(fault.Invalid, err, "line %d: source %s", s.Line, s.Name)
		}
	}
	return nil
}

// verifier returns the verifier of a source with its current secrets.
func verifier(ctx context.Context, s source.Source, lookup func(context.Context, secret.Value) (string, error)) (*verify.Verifier, error) {
	secrets := make([]string, len(s.Secrets))
	for i, v := range s.Secrets {
		var err error
		if secrets[i], err = lookup(ctx, v); err != nil {
			return nil, err
		}
	}
	return verify.New(s.Verify, secrets)
}
