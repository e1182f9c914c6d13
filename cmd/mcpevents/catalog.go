package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/awsx/profile"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/settings"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/dynamo"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// CatalogCmd holds the commands for catalog files.
type CatalogCmd struct {
	Check CatalogCheckCmd `cmd:"" help:"Check a catalog file; reports every fault with its line."`
	Apply CatalogApplyCmd `cmd:"" help:"Write a catalog, and a configuration, to a deployment on AWS."`
}

// CatalogCheckCmd checks a file and says what is in it.
type CatalogCheckCmd struct {
	File    string `arg:"" default:"catalog.yaml" help:"The catalog."`
	Against string `placeholder:"FILE" help:"An older catalog: tell what changed since, what of it may break publishers or subscribers, and which subscriptions end."`
}

// Run implements the command.
func (c *CatalogCheckCmd) Run(g *Globals) error {
	next, err := readCatalog(c.File)
	if err != nil {
		return err
	}
	if c.Against != "" {
		before, err := readCatalog(c.Against)
		if err != nil {
			return err
		}
		printChanges(g.out, catalog.Diff(before, next))
		for _, end := range catalog.Ends(before, next) {
			fmt.Fprintf(g.out, "Webhook subscriptions to %s end: %s.\n", end.Event, end.What)
		}
		return nil
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
	fmt.Fprintf(g.out, "%s is a catalog of %d event types.\n", c.File, len(next.Entries()))
	return nil
}

func readCatalog(path string) (*catalog.Catalog, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "read the catalog")
	}
	return catalog.ParseFile(path, src)
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
	File          string `arg:"" default:"catalog.yaml" help:"The catalog."`
	Config        string `env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"Write this configuration (keys, backends) too."`
	Workspace     string `default:"${workspace}" env:"MCPEVENTS_WORKSPACE" help:"Workspace that the catalog is for (${default})."`
	Table         string `required:"" env:"MCPEVENTS_TABLE_SETTINGS" placeholder:"NAME" help:"The deployment's settings table: the output SettingsTable of the stack."`
	AllowBreaking bool   `help:"Write the catalog although webhook subscriptions end by it."`
	LogTable      string `env:"MCPEVENTS_TABLE_LOG" placeholder:"NAME" help:"The deployment's log table, the output LogTable: notify connected clients of the change as soon as every function uses it. Without it they are notified within a minute after."`
}

// Help is the long help of the command.
func (c *CatalogApplyCmd) Help() string {
	return `Checks the files, writes them as a new version, and tells what changed; a line with ! may break publishers or subscribers. Every function uses the new version within 5 seconds. Credentials and region are found as by the AWS command line; AWS_ENDPOINT_URL leads to an emulator.

An embedded server (mcpevents serve) uses the file that it was started with, and follows its changes by itself.`
}

// Run implements the command.
func (c *CatalogApplyCmd) Run(g *Globals) error {
	if !auth.ValidWorkspace(c.Workspace) {
		return fault.New(fault.Invalid, "%q is not the name of a workspace", c.Workspace)
	}
	src, err := os.ReadFile(c.File)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "read the catalog")
	}
	// Both files are checked before either is written.
	cat, err := catalog.ParseFile(c.File, src)
	if err != nil {
		return err
	}
	var settings []byte
	if c.Config != "" {
		if settings, err = os.ReadFile(c.Config); err != nil {
			return fault.Wrap(fault.Invalid, err, "read the configuration")
		}
		parsed, err := config.ParseFile(c.Config, settings)
		if err != nil {
			return err
		}
		if events := parsed.Conversation.Events; events.Workspace == c.Workspace {
			if err := conversation.CheckCatalog(cat, events); err != nil {
				return err
			}
		}
	}
	ctx, stop := interruptible()
	defer stop()
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	if err := c.checkBreaking(ctx, db, cat); err != nil {
		return err
	}
	applied, err := catalog.Apply(ctx, db, c.Workspace, src)
	if err != nil {
		return err
	}
	printChanges(g.out, applied.Changes)
	tell(g.out, "the catalog of workspace "+c.Workspace, applied.Version, applied.Changed)
	changed := applied.Changed
	if c.Config != "" {
		version, anew, err := config.Apply(ctx, db, settings)
		if err != nil {
			return err
		}
		tell(g.out, "the configuration", version, anew)
		changed = changed || anew
	}
	if !changed || c.LogTable == "" {
		return nil
	}
	return c.announce(ctx, g.out, db)
}

// checkBreaking refuses a catalog by which subscriptions end, unless that is confirmed.
func (c *CatalogApplyCmd) checkBreaking(ctx context.Context, db store.DB, next *catalog.Catalog) error {
	if c.AllowBreaking {
		return nil
	}
	before, err := catalog.Load(ctx, db, c.Workspace)
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
		return nil // the first one, or in place of what is no catalog any more
	}
	if err != nil {
		return err
	}
	var why []string
	for _, end := range catalog.Ends(before, next) {
		why = append(why, end.Event+" ("+end.What+")")
	}
	if len(why) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "the changed catalog would end webhook subscriptions to %s; --allow-breaking writes it all the same", strings.Join(why, ", "))
}

// announce waits until every function uses what was written, and then tells of it.
func (c *CatalogApplyCmd) announce(ctx context.Context, out io.Writer, db store.DB) error {
	fmt.Fprintf(out, "Connected clients are told in %s, when every function uses it.\n", settings.MaxAge)
	log := &eventlog.Log{DB: db}
	for {
		waiting, err := settings.Announce(ctx, db, time.Now(), stream.AnnounceStored(log))
		if err != nil || waiting == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settings.MaxAge / 5):
		}
	}
}

func tell(w io.Writer, what string, version int64, changed bool) {
	if changed {
		fmt.Fprintf(w, "Version %d of %s is stored.\n", version, what)
		return
	}
	fmt.Fprintf(w, "Version %d of %s has the same text; nothing was written.\n", version, what)
}

// open reaches the deployment's tables, of which two are needed at most.
func (c *CatalogApplyCmd) open(ctx context.Context) (store.DB, error) {
	cfg, err := profile.Load(ctx)
	if err != nil {
		return nil, err
	}
	return dynamo.New(dynamodb.NewFromConfig(cfg), func(t store.Table) string {
		switch {
		case t == store.Settings:
			return c.Table
		case t == store.Log && c.LogTable != "":
			return c.LogTable
		}
		return "no-" + string(t) // no other is used here
	}), nil
}
