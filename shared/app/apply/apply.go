// Package apply brings an operator's files into use, in every mode: it checks all of them, against each other and
// against the subscriptions that they would end, and then writes them to the store. `mcpevents catalog apply` does
// that for a deployment on AWS, and an embedded server for itself, at its start and when a file changes.
//
// Packages shared/events/catalog and shared/app/config parse the files. Package shared/storage/settings distributes the written
// documents and notifies clients.
package apply

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Files are what an operator gives.
type Files struct {
	// Catalogs are by workspace; that of [catalog.Shared] needs All.
	Catalogs map[string]*catalog.Catalog
	// Config is nil if it is not given.
	Config *config.Config
	// All says that there are no others: a stored catalog or configuration that is not given is removed.
	// Otherwise it stays.
	All bool
	// AllowBreaking confirms that subscriptions end.
	AllowBreaking bool
}

// Target is where files are applied.
type Target struct {
	DB store.DB
	// Endings counts the live subscriptions that catalogs would end; [delivery.Terminator.Endings] does. If it is nil,
	// catalogs that could end any are refused.
	Endings func(context.Context, catalog.Source) ([]delivery.Ending, error)
	// Check finds what else speaks against a configuration, such as a secret that is not there; nil is nothing.
	Check func(context.Context, *config.Config) error
}

// Deployment is a target whose processes are others, with their own secrets. If counts, its subscriptions can be read.
func Deployment(db store.DB, counts bool) *Target {
	t := &Target{DB: db}
	if counts {
		catalogs := catalog.NewStored(db, nil, nil)
		// Without a directory: whose key is gone counts until the audit ends its subscriptions.
		t.Endings = (&delivery.Terminator{
			Subscriptions: &subscription.Service{Records: subscription.Records{DB: db}},
			Lists:         &subscription.Lists{DB: db},
			Review:        &subscription.Review{DB: db, Catalog: catalogs},
		}).Endings
	}
	return t
}

// Catalog is what became of a workspace's catalog.
type Catalog struct {
	Workspace string
	catalog.Applied
}

// Outcome is what became of files.
type Outcome struct {
	Catalogs []Catalog // in the order of their workspaces
	// ConfigVersion is 0 if no configuration was given or removed.
	ConfigVersion int64
	ConfigChanged bool
}

// CatalogChanged reports whether one of the catalogs is another than before.
func (o Outcome) CatalogChanged() bool {
	return slices.ContainsFunc(o.Catalogs, func(c Catalog) bool { return c.Changed })
}

// Apply writes the files, all or none; see [settings.WriteAll]. The error is of kind fault.Invalid if one of them is refused.
// Every process uses them within [settings.MaxAge]; then [settings.Announce] announces the changes.
func (t *Target) Apply(ctx context.Context, f Files) (o Outcome, err error) {
	if f.Catalogs, err = t.withRemoved(ctx, f); err != nil {
		return o, err
	}
	if f.All && f.Config == nil {
		f.Config = &config.Config{}
	}
	if err := t.check(ctx, f); err != nil {
		return o, err
	}
	var documents []settings.Document
	for _, workspace := range slices.Sorted(maps.Keys(f.Catalogs)) {
		document, changes, err := catalog.Document(ctx, t.DB, workspace, f.Catalogs[workspace])
		if err != nil {
			return o, err
		}
		documents = append(documents, document)
		o.Catalogs = append(o.Catalogs, Catalog{workspace, catalog.Applied{Changes: changes}})
	}
	if f.Config != nil {
		documents = append(documents, f.Config.Document())
	}
	written, err := settings.WriteAll(ctx, t.DB, documents...)
	if err != nil {
		return Outcome{}, err
	}
	for i := range o.Catalogs {
		o.Catalogs[i].Version, o.Catalogs[i].Changed = written[i].Version, written[i].Changed
	}
	if f.Config != nil {
		last := written[len(written)-1]
		o.ConfigVersion, o.ConfigChanged = last.Version, last.Changed
	}
	return o, nil
}

// withRemoved adds nil for each catalog that is to be removed.
func (t *Target) withRemoved(ctx context.Context, f Files) (map[string]*catalog.Catalog, error) {
	if !f.All {
		return f.Catalogs, nil
	}
	stored, err := catalog.Names(ctx, t.DB)
	all := maps.Clone(f.Catalogs)
	for _, workspace := range stored {
		if all[workspace] == nil {
			all[workspace] = nil
		}
	}
	return all, err
}

func (t *Target) check(ctx context.Context, f Files) error {
	if err := t.checkConfig(ctx, f); err != nil {
		return err
	}
	for workspace, c := range f.Catalogs {
		if c == nil {
			continue
		}
		if _, err := catalog.Compare(ctx, t.DB, workspace, c); err != nil {
			return err
		}
	}
	if f.AllowBreaking {
		return nil
	}
	if t.Endings == nil {
		return t.checkEventTypes(ctx, f)
	}
	endings, err := t.Endings(ctx, f.source())
	return cmp.Or(err, delivery.Breaking(endings))
}

// source has the catalogs that are given.
func (f Files) source() catalog.Workspaces {
	s := catalog.Workspaces{Own: map[string]catalog.Source{}}
	for workspace, c := range f.Catalogs {
		switch {
		case workspace == catalog.Shared:
			s.Rest = catalog.NewStatic(c)
		case c != nil:
			s.Own[workspace] = catalog.NewStatic(c)
		}
	}
	return s
}

// checkConfig looks at the configuration that there will be, and at the catalog that it needs.
func (t *Target) checkConfig(ctx context.Context, f Files) (err error) {
	c := f.Config
	switch {
	case c == nil:
		if c, err = config.Load(ctx, t.DB); err != nil {
			return err
		}
	case t.Check != nil:
		if err := t.Check(ctx, c); err != nil {
			return err
		}
	}
	var all []error
	for _, s := range c.Sources {
		cat, err := t.catalogOf(ctx, f, s.Workspace)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "source %s: the catalog of workspace %s", s.Name, s.Workspace)
		}
		all = append(all, ingest.CheckCatalog(cat, s))
	}
	if events := c.Conversation.Events; events.Any() {
		cat, err := t.catalogOf(ctx, f, events.Workspace)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "conversation: events: the catalog of workspace %s", events.Workspace)
		}
		all = append(all, conversation.CheckCatalog(cat, events))
	}
	return errors.Join(all...)
}

// catalogOf is the catalog that a workspace will have.
func (t *Target) catalogOf(ctx context.Context, f Files, workspace string) (*catalog.Catalog, error) {
	cat, err := f.source().Catalog(ctx, workspace)
	if fault.Is(err, fault.NotFound) {
		cat, err = catalog.Load(ctx, t.DB, workspace)
	}
	return cat, err
}

// checkEventTypes refuses what could end subscriptions, where it is not known whether there are any.
func (t *Target) checkEventTypes(ctx context.Context, f Files) error {
	var why []string
	for _, workspace := range slices.Sorted(maps.Keys(f.Catalogs)) {
		before, err := catalog.Load(ctx, t.DB, workspace)
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
			continue // the first one, or in place of what is no catalog any more
		}
		if err != nil {
			return err
		}
		for _, end := range catalog.Ends(before, f.Catalogs[workspace]) {
			why = append(why, end.Event+" ("+end.What+")")
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "the changed catalog would end webhook subscriptions to %s; --allow-breaking writes it all the same", strings.Join(why, ", "))
}
