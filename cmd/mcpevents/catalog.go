package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/app/apply"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/awsx/profile"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
)

// CatalogCmd holds the commands for catalog files.
type CatalogCmd struct {
	Check CatalogCheckCmd `cmd:"" help:"Check a catalog file; reports every fault with its line."`
	Init  CatalogInitCmd  `cmd:"" help:"Write event types and sources of known providers, such as GitHub and Stripe, into new files."`
	Apply CatalogApplyCmd `cmd:"" help:"Write a catalog, and a configuration, to a deployment on AWS."`
}

// CatalogCheckCmd checks a file and says what is in it.
type CatalogCheckCmd struct {
	File               string `arg:"" default:"catalog.yaml" help:"The catalog."`
	Config             string `env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"Check this configuration too, and that the catalog has what sources of its workspace need."`
	Against            string `placeholder:"FILE|TABLE" help:"An older catalog, or that which a deployment uses, by the name of its settings table. Prints what changed since, what of it may break publishers or subscribers, and which subscriptions end."`
	SubscriptionsTable string `env:"MCPEVENTS_TABLE_SUBSCRIPTIONS" placeholder:"NAME" help:"With a deployment: its subscriptions table, the output SubscriptionsTable of the stack. The live subscriptions that end are counted."`
	Workspace          string `default:"${workspace}" env:"MCPEVENTS_WORKSPACE" help:"The workspace that the catalog is for (${default})."`
}

// Run implements the command.
func (c *CatalogCheckCmd) Run(g *Globals) error {
	next, err := readCatalog(c.File)
	if err != nil {
		return err
	}
	if err := c.checkConfig(next); err != nil {
		return err
	}
	if c.Against != "" {
		return c.against(g, next)
	}
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	for _, e := range next.Entries() {
		fmt.Fprintf(w, "%s\t%s\t%s\n", e.Name, e.Pattern(), strings.Join(e.Delivery, ", "))
	}
	if err := w.Flush(); err != nil {
		return fault.Wrap(fault.Internal, err, "print")
	}
	for _, e := range next.Entries() {
		if e.Unordered() {
			fmt.Fprintf(g.out, "%s gives up order: events of one URI may overtake each other, and a stream that resumes may repeat those of its last seconds.\n", e.Name)
		}
	}
	types := "event types"
	if len(next.Entries()) == 1 {
		types = "event type"
	}
	fmt.Fprintf(g.out, "%s is a catalog of %d %s.\n", c.File, len(next.Entries()), types)
	if c.Config != "" {
		fmt.Fprintf(g.out, "%s is a configuration that fits it.\n", c.Config)
	}
	return nil
}

func (c *CatalogCheckCmd) checkConfig(cat *catalog.Catalog) error {
	cfg, err := readConfig(c.Config)
	if cfg == nil || err != nil {
		return err
	}
	return fault.Wrap(fault.Invalid, ingest.CheckSources(cat, c.Workspace, cfg.Sources), "%s", c.Config)
}

func printChanges(w io.Writer, changes []catalog.Change) {
	if len(changes) == 0 {
		fmt.Fprintln(w, "Nothing of meaning changed.")
	}
	for _, change := range changes {
		mark := " "
		if change.Breaking {
			mark = "!"
		}
		fmt.Fprintf(w, "%s %s: %s\n", mark, change.Event, change.What)
	}
}

// CatalogApplyCmd writes the catalog into the settings table of a deployment.
type CatalogApplyCmd struct {
	File               string `arg:"" default:"catalog.yaml" help:"The catalog."`
	Config             string `env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"Write this configuration (keys, backends, sources, …) too."`
	Workspace          string `default:"${workspace}" env:"MCPEVENTS_WORKSPACE" help:"Workspace that the catalog is for (${default})."`
	Table              string `required:"" env:"MCPEVENTS_TABLE_SETTINGS" placeholder:"NAME" help:"The deployment's settings table: the output SettingsTable of the stack."`
	AllowBreaking      bool   `help:"Write the catalog although webhook subscriptions end by it."`
	SubscriptionsTable string `env:"MCPEVENTS_TABLE_SUBSCRIPTIONS" placeholder:"NAME" help:"The deployment's subscriptions table, the output SubscriptionsTable: refuse the catalog only if live subscriptions end by it, and count them. Without it every change that could end some is refused."`
	LogTable           string `env:"MCPEVENTS_TABLE_LOG" placeholder:"NAME" help:"The deployment's log table, the output LogTable: notify connected clients of the change as soon as every function uses it. Without it they are notified within a minute after."`
}

// Help is the long help of the command.
func (c *CatalogApplyCmd) Help() string {
	return `Checks the files, writes them as a new version, and prints what changed; a line with ! may break publishers or subscribers. Every function uses the new version within 5 seconds. Credentials and region are found as by the AWS command line; AWS_ENDPOINT_URL leads to an emulator.

An embedded server (mcpevents serve) uses the file that it was started with, and follows its changes by itself.`
}

// Run implements the command.
func (c *CatalogApplyCmd) Run(g *Globals) error {
	if !auth.ValidWorkspace(c.Workspace) {
		return fault.New(fault.Invalid, "%q is not the name of a workspace", c.Workspace)
	}
	cat, err := readCatalog(c.File)
	if err != nil {
		return err
	}
	files := apply.Files{Catalogs: map[string]*catalog.Catalog{c.Workspace: cat}, AllowBreaking: c.AllowBreaking}
	if files.Config, err = readConfig(c.Config); err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	db, err := openTables(ctx, map[store.Table]string{store.Settings: c.Table, store.Subscriptions: c.SubscriptionsTable, store.Log: c.LogTable})
	if err != nil {
		return err
	}
	done, err := apply.Deployment(db, c.SubscriptionsTable != "").Apply(ctx, files)
	if err != nil {
		return err
	}
	for _, applied := range done.Catalogs {
		printChanges(g.out, applied.Changes)
		printVersion(g.out, "the catalog of workspace "+applied.Workspace, applied.Version, applied.Changed)
	}
	if done.ConfigVersion > 0 {
		printVersion(g.out, "the configuration", done.ConfigVersion, done.ConfigChanged)
	}
	if c.LogTable == "" || !done.CatalogChanged() && !done.ConfigChanged {
		return nil
	}
	fmt.Fprintf(g.out, "Connected clients are notified in %s, when every function uses it.\n", settings.MaxAge)
	return settings.Announce(ctx, db, settings.MaxAge, stream.AnnounceStored(&eventlog.Log{DB: db}))
}

func printVersion(w io.Writer, what string, version int64, changed bool) {
	if changed {
		fmt.Fprintf(w, "Version %d of %s is stored.\n", version, what)
		return
	}
	fmt.Fprintf(w, "Version %d of %s has the same text; nothing was written.\n", version, what)
}

// openTables reaches tables of a deployment.
func openTables(ctx context.Context, names map[store.Table]string) (store.DB, error) {
	cfg, err := profile.Load(ctx)
	if err != nil {
		return nil, err
	}
	return dynamo.New(dynamodb.NewFromConfig(cfg), func(t store.Table) string {
		return cmp.Or(names[t], "no-"+string(t)) // which is not used then
	}), nil
}

// against compares a catalog with an older one, or with that of a deployment.
func (c *CatalogCheckCmd) against(g *Globals, next *catalog.Catalog) error {
	isPath := strings.ContainsAny(c.Against, "/\\") && !strings.HasPrefix(c.Against, "arn:") || strings.HasSuffix(c.Against, ".yaml")
	if _, err := os.Stat(c.Against); err == nil || isPath {
		before, err := readCatalog(c.Against)
		if err == nil {
			printChanges(g.out, catalog.Diff(before, next))
			printEnds(g.out, catalog.Ends(before, next))
		}
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	db, err := openTables(ctx, map[store.Table]string{store.Settings: c.Against, store.Subscriptions: c.SubscriptionsTable})
	if err != nil {
		return err
	}
	before, err := catalog.Load(ctx, db, c.Workspace)
	if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Invalid) {
		return err
	}
	changes, err := catalog.CheckChange(db, before, next)
	if err != nil {
		return err
	}
	printChanges(g.out, changes)
	if c.SubscriptionsTable == "" {
		printEnds(g.out, catalog.Ends(before, next))
		return nil
	}
	endings, err := apply.Deployment(db, true).Endings(ctx, catalog.Workspaces{Own: map[string]catalog.Source{c.Workspace: catalog.NewStatic(next)}})
	for _, e := range endings {
		fmt.Fprintf(g.out, "%d live webhook subscriptions end because %s.\n", e.Subscriptions, e.Reason)
	}
	if err == nil && len(endings) == 0 {
		fmt.Fprintln(g.out, "No live webhook subscription ends.")
	}
	return err
}

func printEnds(w io.Writer, ends []catalog.Change) {
	for _, end := range ends {
		fmt.Fprintf(w, "Webhook subscriptions to %s end: %s.\n", end.Event, end.What)
	}
}
