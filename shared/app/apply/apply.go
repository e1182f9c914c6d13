// Package apply checks an operator's catalogs and configuration. If it accepts all of them, it stores them together. Otherwise it leaves
// the stored ones unchanged.
//
// It checks whether the new files fit each other and the stored documents. It also checks which subscriptions the new catalogs would end.
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

// Files are the catalogs and the configuration that an operator has written.
type Files struct {
	// Catalogs has the catalogs by workspace. The entry for [catalog.Shared] is the catalog of all workspaces that have no catalog of
	// their own. This entry is allowed only if All is true, because Apply otherwise does not know which workspaces have a catalog of
	// their own.
	Catalogs map[string]*catalog.Catalog
	// Config is the configuration. If it is nil, the stored configuration is kept or, with All, replaced with an empty one.
	Config *config.Config
	// All is true if Catalogs and Config are complete: the operator has no other files for this server. Apply then removes the stored
	// catalogs of workspaces that are not in Catalogs.
	All bool
	// AllowBreaking lets Apply accept catalogs that end subscriptions, and a configuration that [Target.KeepKeys] would refuse.
	AllowBreaking bool
}

// Target is the stand-alone server or the deployment on AWS whose stored catalogs and configuration Apply replaces.
type Target struct {
	DB store.DB
	// Endings counts the live subscriptions that the new catalogs would end, see [lifecycle.Terminator.CountEndings]. If Endings is nil,
	// Apply cannot count them, so it refuses every catalog that could end subscriptions.
	Endings func(context.Context, catalog.Source) ([]lifecycle.Ending, error)
	// Check makes additional checks of a new configuration before it is stored, for example that all its secrets exist. It may be nil.
	Check func(context.Context, *config.Config) error
	// KeepKeys makes Apply refuse a configuration without a section for keys, if the stored configuration has keys. Without keys, all
	// calls could fail, and all webhook subscriptions would end.
	KeepKeys bool
	// KeepConfig makes Apply refuse an empty configuration if the stored one is not empty; see [config.Document.CheckNotEmptied].
	KeepConfig bool
}

// NewDeployment returns the target for a deployment on AWS. It always sets KeepKeys, because it does not know whether the deployment
// authenticates callers with keys. It does not check whether secrets exist, because only the functions of the deployment can read them.
//
// The parameter canCount is true if db has the table of subscriptions. Without this table, [Target.Endings] is nil.
func NewDeployment(db store.DB, canCount bool) *Target {
	t := &Target{DB: db, Check: refuseCommands, KeepKeys: true, KeepConfig: true}
	if canCount {
		catalogs := catalog.NewStored(db, nil, nil, nil)
		// Without a directory of principals, the review does not notice that the API key of a principal was removed. So Endings also
		// counts subscriptions of such principals, which would soon end even without the new catalogs.
		t.Endings = (&lifecycle.Terminator{
			Subscriptions: &subscription.Service{Store: subscription.Store{DB: db}},
			Lists:         &subscription.Lists{DB: db},
			Review:        &review.Review{DB: db, Catalog: catalogs},
		}).CountEndings
	}
	return t
}

// refuseCommands returns an error if a backend is a command. On AWS, a command cannot run, because a function has no processes that
// outlive its invocation.
func refuseCommands(_ context.Context, c *config.Config) error {
	for _, b := range c.Backends {
		if b.Command != nil {
			return fault.New(fault.Invalid, "backend %s: a command needs a stand-alone server; on AWS, give the url of a server over HTTP", b.Name)
		}
	}
	return nil
}

// Catalog describes what [Target.Apply] did with the catalog of one workspace.
type Catalog struct {
	Workspace string
	Version   int64 // counts the catalogs of the workspace, from 1
	Changed   bool  // false if the same text was stored already
	Changes   []catalog.Change
}

// Outcome is the result of [Target.Apply].
type Outcome struct {
	Catalogs []Catalog // in the order of their workspaces
	// ConfigVersion is the version of the stored configuration after the call of Apply. It is 0 if Apply had only catalogs to
	// write.
	ConfigVersion int64
	ConfigChanged bool
}

// CatalogChanged reports whether at least one catalog changed.
func (o Outcome) CatalogChanged() bool {
	return slices.ContainsFunc(o.Catalogs, func(c Catalog) bool { return c.Changed })
}

// plan is the state of one call of Apply. It reads each stored document once and keeps it. The write at the end fails if a document that
// it replaces has changed in the meantime.
type plan struct {
	*Target
	Files
	stored  map[string]catalog.Document // by workspace
	config  config.Document
	changes map[string][]catalog.Change
}

// Apply checks the files. If all are accepted, it writes them together, see [settings.Write]. Otherwise it writes no file, and the error
// is of kind fault.Invalid. All processes use the new files within [settings.MaxAge]. The caller must then announce the changes to
// clients with [settings.Announce].
func (t *Target) Apply(ctx context.Context, f Files) (Outcome, error) {
	p := &plan{Target: t, Files: f, stored: map[string]catalog.Document{}, changes: map[string][]catalog.Change{}}
	if err := p.read(ctx); err != nil {
		return Outcome{}, err
	}
	if t.KeepConfig {
		if err := p.config.CheckNotEmptied(f.Config); err != nil {
			return Outcome{}, err
		}
	}
	if err := p.check(ctx); err != nil {
		return Outcome{}, err
	}
	return p.write(ctx)
}

// read reads the stored configuration. If [Files.All] is true, it also marks the stored catalogs that are not among the files for
// removal.
func (p *plan) read(ctx context.Context) (err error) {
	if p.All {
		names, err := catalog.Names(ctx, p.DB)
		if err != nil {
			return err
		}
		given := p.Catalogs
		p.Catalogs = maps.Clone(given)
		for _, workspace := range names {
			p.Catalogs[workspace] = given[workspace] // nil if there is no file for the workspace, which removes its stored catalog
		}
		p.Config = cmp.Or(p.Config, &config.Config{})
	}
	p.config, err = config.Read(ctx, p.DB)
	return err
}

// currentCatalog returns the catalog that a workspace uses before the write. This is its own catalog or, without one, the catalog of
// [catalog.Shared].
func (p *plan) currentCatalog(ctx context.Context, workspace string) (catalog.Document, error) {
	own, err := p.storedCatalog(ctx, workspace)
	if err != nil || own.Catalog != nil || own.Invalid != nil {
		return own, err
	}
	return p.storedCatalog(ctx, catalog.Shared)
}

func (p *plan) storedCatalog(ctx context.Context, workspace string) (d catalog.Document, err error) {
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
		d, err := p.currentCatalog(ctx, workspace)
		if err != nil {
			return err
		}
		next := p.Catalogs[workspace]
		for _, end := range catalog.EndedTypes(d.Catalog, next) {
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
		endings, err := p.Endings(ctx, catalog.AddBackends(p.DB, p.source()))
		return cmp.Or(err, lifecycle.EndingsError(endings))
	case len(ends) > 0: // without Endings, Apply cannot tell whether there are such subscriptions
		return fault.New(fault.Invalid, "the changed catalog would end webhook subscriptions to %s; use --allow-breaking to write it anyway", strings.Join(ends, ", "))
	}
	return nil
}

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

// checkConfig checks the new configuration. If Apply got only catalogs, checkConfig checks the stored configuration instead, because it
// may not fit the new catalogs. For example, a source may publish events of a removed type.
func (p *plan) checkConfig(ctx context.Context) error {
	c := p.Config
	switch {
	case c == nil && p.config.Invalid != nil:
		return p.config.Invalid
	case c == nil:
		c = p.config.Config
	case p.Check != nil:
		if err := p.Check(ctx, c); err != nil {
			return c.Locate(err)
		}
	}
	if had := p.config.Config; p.KeepKeys && !p.AllowBreaking && c.Keys == nil && had != nil && len(had.Keys) > 0 {
		return fault.New(fault.Invalid, "the configuration has no section keys, which would revoke all %d keys in use: add the section, or confirm with keys: [] or --allow-breaking", len(had.Keys))
	}
	var all []error
	for _, s := range c.Sources {
		cat, err := p.nextCatalog(ctx, s.Workspace)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "source %s: the catalog of workspace %s", s.Name, s.Workspace)
		}
		all = append(all, ingest.CheckCatalog(cat, s))
	}
	if events := c.Conversation.Events; events.Any() {
		cat, err := p.nextCatalog(ctx, events.Workspace)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "conversation: events: the catalog of workspace %s", events.Workspace)
		}
		all = append(all, conversation.CheckCatalog(cat, events))
	}
	return c.Locate(errors.Join(all...))
}

// nextCatalog returns the catalog that a workspace will have after the write. This is the catalog in the files or, without one, the
// current catalog.
func (p *plan) nextCatalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	cat, none := p.source().Catalog(ctx, workspace)
	if none == nil {
		return cat, nil
	}
	d, err := p.currentCatalog(ctx, workspace)
	if err = cmp.Or(err, d.Invalid); err == nil && d.Catalog == nil {
		err = none
	}
	return d.Catalog, err
}

func (p *plan) write(ctx context.Context) (o Outcome, err error) {
	var edits []settings.Edit
	for _, workspace := range slices.Sorted(maps.Keys(p.Catalogs)) {
		d, err := p.storedCatalog(ctx, workspace)
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
