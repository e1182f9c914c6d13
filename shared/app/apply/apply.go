// Package apply brings an operator's files into use, in both modes. It reads the documents that the files replace, checks the
// files against each other, against those documents and against the subscriptions that they would end, and then writes
// all of them or none. `mcpevents catalog apply` does that for a deployment on AWS, and a stand-alone server for itself, at its
// start and when a file changes.
//
// The packages that own the sections of the files parse and check them. Package shared/storage/settings describes the whole way
// of a change.
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
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
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
	// Endings counts the live subscriptions that catalogs would end; [lifecycle.Terminator.Endings] does. If it is nil,
	// catalogs that could end any are refused.
	Endings func(context.Context, catalog.Source) ([]lifecycle.Ending, error)
	// Check finds what else speaks against a configuration, such as a secret that is not there; nil is nothing.
	Check func(context.Context, *config.Config) error
}

// Deployment is a target whose processes are others, with their own secrets. If counts, its subscriptions can be read.
func Deployment(db store.DB, counts bool) *Target {
	t := &Target{DB: db}
	if counts {
		catalogs := catalog.NewStored(db, nil, nil)
		// Without a directory: whose key is gone counts until the audit ends its subscriptions.
		t.Endings = (&lifecycle.Terminator{
			Subscriptions: &subscription.Service{Records: subscription.Records{DB: db}},
			Lists:         &subscription.Lists{DB: db},
			Review:        &review.Review{DB: db, Catalog: catalogs},
		}).Endings
	}
	return t
}

// Catalog is what became of a workspace's catalog.
type Catalog struct {
	Workspace string
	Version   int64 // counts the catalogs of the workspace, from 1
	Changed   bool  // false if the same text was stored already
	Changes   []catalog.Change
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

// plan is one call of Apply. It reads each stored document once, so that the checked documents are the ones that the write
// replaces.
type plan struct {
	*Target
	Files
	stored  map[string]catalog.Document // by workspace
	config  config.Document
	changes map[string][]catalog.Change
}

// Apply writes the files, all or none; see [settings.Write]. The error is of kind fault.Invalid if one of them is refused.
// Every process uses them within [settings.MaxAge]; then [settings.Announce] announces the changes.
func (t *Target) Apply(ctx context.Context, f Files) (Outcome, error) {
	p := &plan{Target: t, Files: f, stored: map[string]catalog.Document{}, changes: map[string][]catalog.Change{}}
	if err := p.read(ctx); err != nil {
		return Outcome{}, err
	}
	if err := p.check(ctx); err != nil {
		return Outcome{}, err
	}
	return p.write(ctx)
}

// read reads the configuration, and adds what is to be removed to the files.
func (p *plan) read(ctx context.Context) (err error) {
	if p.All {
		names, err := catalog.Names(ctx, p.DB)
		if err != nil {
			return err
		}
		given := p.Catalogs
		p.Catalogs = maps.Clone(given)
		for _, workspace := range names {
			p.Catalogs[workspace] = given[workspace] // nil removes it
		}
		p.Config = cmp.Or(p.Config, &config.Config{})
	}
	p.config, err = config.Read(ctx, p.DB)
	return err
}

// before returns the catalog that a workspace has, which is its own one or that of [catalog.Shared].
func (p *plan) before(ctx context.Context, workspace string) (catalog.Document, error) {
	own, err := p.document(ctx, workspace)
	if err != nil || own.Catalog != nil || own.Invalid != nil {
		return own, err
	}
	return p.document(ctx, catalog.Shared)
}

// document returns the stored catalog of a workspace or of [catalog.Shared].
func (p *plan) document(ctx context.Context, workspace string) (d catalog.Document, err error) {
	d, known := p.stored[workspace]
	if !known {
		if d, err = catalog.Read(ctx, p.DB, workspace); err == nil {
			p.stored[workspace] = d
		}
	}
	return d, err
}

func (p *plan) check(ctx context.Context) error {
	if err := p.checkConfig(ctx); err != nil {
		return err
	}
	var ends []string
	for _, workspace := range slices.Sorted(maps.Keys(p.Catalogs)) {
		d, err := p.before(ctx, workspace)
		if err != nil {
			return err
		}
		next := p.Catalogs[workspace]
		for _, end := range catalog.Ends(d.Catalog, next) {
			ends = append(ends, end.Event+" ("+end.What+")")
		}
		if next == nil {
			continue
		}
		if p.changes[workspace], err = catalog.CheckChange(p.DB, d.Catalog, next); err != nil {
			return err
		}
	}
	switch {
	case p.AllowBreaking:
		return nil
	case p.Endings != nil:
		endings, err := p.Endings(ctx, p.source())
		return cmp.Or(err, lifecycle.Breaking(endings))
	case len(ends) > 0: // whether there are such subscriptions is not known
		return fault.New(fault.Invalid, "the changed catalog would end webhook subscriptions to %s; --allow-breaking writes it all the same", strings.Join(ends, ", "))
	}
	return nil
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

// checkConfig checks the next configuration, which may be the stored one, and the catalogs that it needs.
func (p *plan) checkConfig(ctx context.Context) error {
	c := p.Config
	switch {
	case c == nil && p.config.Invalid != nil:
		return p.config.Invalid
	case c == nil:
		c = p.config.Config
	case p.Check != nil:
		if err := p.Check(ctx, c); err != nil {
			return err
		}
	}
	var all []error
	for _, s := range c.Sources {
		cat, err := p.after(ctx, s.Workspace)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "source %s: the catalog of workspace %s", s.Name, s.Workspace)
		}
		all = append(all, ingest.CheckCatalog(cat, s))
	}
	if events := c.Conversation.Events; events.Any() {
		cat, err := p.after(ctx, events.Workspace)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "conversation: events: the catalog of workspace %s", events.Workspace)
		}
		all = append(all, conversation.CheckCatalog(cat, events))
	}
	return errors.Join(all...)
}

// after returns the catalog that a workspace will have.
func (p *plan) after(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	cat, none := p.source().Catalog(ctx, workspace)
	if none == nil {
		return cat, nil
	}
	d, err := p.before(ctx, workspace)
	if err = cmp.Or(err, d.Invalid); err == nil && d.Catalog == nil {
		err = none
	}
	return d.Catalog, err
}

// write writes the documents that change.
func (p *plan) write(ctx context.Context) (o Outcome, err error) {
	var edits []settings.Edit
	for _, workspace := range slices.Sorted(maps.Keys(p.Catalogs)) {
		d, err := p.document(ctx, workspace)
		if err != nil {
			return o, err
		}
		e := d.Replace(p.Catalogs[workspace])
		edits = append(edits, e)
		o.Catalogs = append(o.Catalogs, Catalog{Workspace: workspace, Version: e.Version(), Changed: e.Changes(), Changes: p.changes[workspace]})
	}
	if p.Config != nil {
		e := p.config.Replace(p.Config)
		edits = append(edits, e)
		o.ConfigVersion, o.ConfigChanged = e.Version(), e.Changes()
	}
	if err := settings.Write(ctx, p.DB, edits...); err != nil {
		return Outcome{}, err
	}
	return o, nil
}
