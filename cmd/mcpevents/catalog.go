package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/shared/app/apply"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/awsx/profile"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
)

type CatalogCmd struct {
	Check CatalogCheckCmd `cmd:"" help:"Check a catalog file and report every error with its line."`
	Init  CatalogInitCmd  `cmd:"" help:"Create files with the event types and sources of known providers, such as GitHub and Stripe."`
	Apply CatalogApplyCmd `cmd:"" help:"Write a catalog and a configuration to a deployment on AWS."`
}

type CatalogCheckCmd struct {
	File               string `arg:"" default:"catalog.yaml" help:"The catalog (${default})."`
	Config             string `env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"Also check this configuration, and that the catalog has the event types of its sources."`
	Against            string `placeholder:"FILE|TABLE" help:"Compare with an older catalog file, or with the catalog of a deployment, given the name of its settings table. Prints the changes, marks breaking ones with !, and lists the subscriptions that would end."`
	SubscriptionsTable string `env:"MCPEVENTS_TABLE_SUBSCRIPTIONS" placeholder:"NAME" help:"With --against TABLE: the deployment's subscriptions table (the stack's output SubscriptionsTable), to count the subscriptions that would end."`
	Workspace          string `default:"${workspace}" env:"MCPEVENTS_WORKSPACE" help:"Workspace of the catalog (${default})."`
}

func (c *CatalogCheckCmd) Run(g *Globals) error {
	next, err := readCatalog(c.File)
	if err != nil {
		return err
	}
	if err := c.checkConfig(next); err != nil {
		return err
	}
	if c.Against != "" {
		return c.compare(g, next)
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
			fmt.Fprintf(g.out, "%s is unordered: events of one URI may overtake each other, and a resumed stream may repeat the events of the last seconds.\n", e.Name)
		}
	}
	for _, e := range next.Entries() {
		pointers := slices.Concat(slices.Collect(maps.Values(e.Filters)), e.Redact)
		slices.Sort(pointers)
		for _, p := range slices.Compact(pointers) {
			if !declares(e.PayloadSchema, p) {
				fmt.Fprintf(g.out, "%s: payloadSchema does not declare %s, which filters or redact name. Is it misspelled?\n", e.Name, p)
			}
		}
	}
	types := "event types"
	if len(next.Entries()) == 1 {
		types = "event type"
	}
	fmt.Fprintf(g.out, "%s is valid and has %d %s.\n", c.File, len(next.Entries()), types)
	if c.Config != "" {
		fmt.Fprintf(g.out, "%s is valid and fits the catalog.\n", c.Config)
	}
	return nil
}

// declares reports whether a JSON schema declares the member at a JSON Pointer. It looks only at types, properties and items. If a part
// of the schema has other keywords, for example $ref, it returns true, because they may declare the member.
func declares(schema json.RawMessage, pointer string) bool {
	path, _ := jsonpointer.Parse(pointer) // no error, because the pointer is from a valid catalog
	for _, name := range path {
		var s map[string]json.RawMessage
		if json.Unmarshal(schema, &s) != nil {
			return true
		}
		for _, other := range []string{
			"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "patternProperties", "additionalProperties", "prefixItems",
		} {
			if s[other] != nil && string(s[other]) != "false" {
				return true
			}
		}
		types := string(s["type"])
		_, err := strconv.Atoi(name)
		var properties map[string]json.RawMessage
		switch {
		case types != "" && !strings.Contains(types, `"object"`) && (err != nil || !strings.Contains(types, `"array"`)):
			return false // only objects have named members, and only objects and arrays have numbered ones
		case strings.Contains(types, `"array"`) && err == nil:
			schema = s["items"]
		case json.Unmarshal(s["properties"], &properties) != nil:
			return true
		case properties[name] == nil:
			return false
		default:
			schema = properties[name]
		}
	}
	return true
}

func (c *CatalogCheckCmd) checkConfig(cat *catalog.Catalog) error {
	cfg, err := readConfig(c.Config)
	if cfg == nil || err != nil {
		return err
	}
	err = ingest.CheckSources(cat, c.Workspace, cfg.Sources)
	if events := cfg.Conversation.Events; events.Any() && events.Workspace == c.Workspace {
		err = errors.Join(err, conversation.CheckCatalog(cat, events))
	}
	return cfg.Locate(err)
}

func printChanges(w io.Writer, changes []catalog.Change) {
	if len(changes) == 0 {
		fmt.Fprintln(w, "No relevant changes.")
	}
	for _, change := range changes {
		mark := " "
		if change.Breaking {
			mark = "!"
		}
		fmt.Fprintf(w, "%s %s: %s\n", mark, change.Event, change.What)
	}
}

type CatalogApplyCmd struct {
	File               string `arg:"" default:"catalog.yaml" help:"The catalog (${default})."`
	Config             string `env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"Also write this configuration (keys, backends, sources, …)."`
	Workspace          string `default:"${workspace}" env:"MCPEVENTS_WORKSPACE" help:"Workspace of the catalog (${default})."`
	Table              string `required:"" env:"MCPEVENTS_TABLE_SETTINGS" placeholder:"NAME" help:"The deployment's settings table (the stack's output SettingsTable)."`
	AllowBreaking      bool   `help:"Write the files even if the catalog ends webhook subscriptions, or the configuration no longer has keys."`
	SubscriptionsTable string `env:"MCPEVENTS_TABLE_SUBSCRIPTIONS" placeholder:"NAME" help:"The deployment's subscriptions table (the stack's output SubscriptionsTable). With it, a catalog is refused only if it ends existing subscriptions. Without it, every change that could end subscriptions is refused."`
	LogTable           string `env:"MCPEVENTS_TABLE_LOG" placeholder:"NAME" help:"The deployment's log table (the stack's output LogTable). With it, connected clients are notified as soon as every function uses the change. Without it, they are notified within a minute."`
}

func (c *CatalogApplyCmd) Help() string {
	return `Checks the files, writes them as a new version, and prints the changes. A line with ! may break publishers or subscribers. Every function uses the new version within 5 seconds.

AWS credentials and region are found in the same places as by the AWS CLI. For an emulator, set AWS_ENDPOINT_URL.

A stand-alone server (mcpevents serve) does not need this command: it reloads its files when they change.

Example:
  mcpevents catalog apply catalog.yaml --config config.yaml --table my-stack-Settings-1ABC`
}

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
	done, err := apply.NewDeployment(db, c.SubscriptionsTable != "").Apply(ctx, files)
	if err != nil {
		return explainTables(err, c.Table, c.SubscriptionsTable, c.LogTable)
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
	fmt.Fprintf(g.out, "Connected clients are notified in %s, when every function uses the change.\n", settings.MaxAge)
	return settings.Announce(ctx, db, settings.MaxAge, stream.AnnounceStored(&eventlog.Log{DB: db}))
}

func printVersion(w io.Writer, what string, version int64, changed bool) {
	if changed {
		fmt.Fprintf(w, "Version %d of %s is stored.\n", version, what)
		return
	}
	fmt.Fprintf(w, "Version %d of %s is unchanged.\n", version, what)
}

// openTables returns a store with the tables of a deployment on AWS. The parameter names has the names of the tables.
func openTables(ctx context.Context, names map[store.Table]string) (store.DB, error) {
	cfg, err := profile.Load(ctx)
	if err != nil {
		return nil, err
	}
	return dynamo.New(dynamodb.NewFromConfig(cfg), func(t store.Table) string {
		return cmp.Or(names[t], "no-"+string(t)) // a name that does not exist, because the command does not use this table
	}), nil
}

// explainTables adds the names of the tables to the error that a table does not exist. The error of DynamoDB does not say which table is
// missing.
func explainTables(err error, names ...string) error {
	if _, missing := errors.AsType[*types.ResourceNotFoundException](err); !missing {
		return err
	}
	given := slices.DeleteFunc(names, func(name string) bool { return name == "" })
	return fault.Wrap(fault.NotFound, err, "no such table: %s (are the name and AWS_REGION right, and is the deployment complete?)", strings.Join(given, " or "))
}

func (c *CatalogCheckCmd) compare(g *Globals, next *catalog.Catalog) error {
	isPath := strings.ContainsAny(c.Against, "/\\") && !strings.HasPrefix(c.Against, "arn:") || strings.HasSuffix(c.Against, ".yaml")
	if _, err := os.Stat(c.Against); err == nil || isPath {
		before, err := readCatalog(c.Against)
		if err == nil {
			printChanges(g.out, catalog.Diff(before, next))
			printEnds(g.out, catalog.EndedTypes(before, next))
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
		return explainTables(err, c.Against)
	}
	changes, err := catalog.CheckChange(db, before, next)
	if err != nil {
		return err
	}
	printChanges(g.out, changes)
	if c.SubscriptionsTable == "" {
		printEnds(g.out, catalog.EndedTypes(before, next))
		return nil
	}
	endings, err := apply.NewDeployment(db, true).Endings(ctx, catalog.AddBackends(db, catalog.Workspaces{Own: map[string]catalog.Source{c.Workspace: catalog.NewStatic(next)}}))
	for _, e := range endings {
		fmt.Fprintf(g.out, "%d live webhook subscriptions would end because %s.\n", e.Subscriptions, e.Reason)
	}
	if err == nil && len(endings) == 0 {
		fmt.Fprintln(g.out, "No live webhook subscription would end.")
	}
	return err
}

func printEnds(w io.Writer, ends []catalog.Change) {
	for _, end := range ends {
		fmt.Fprintf(w, "Webhook subscriptions to %s would end: %s.\n", end.Event, end.What)
	}
}

type CatalogInitCmd struct {
	From  []string `required:"" xor:"what" placeholder:"NAME" help:"Providers, for example github,stripe."`
	List  bool     `required:"" xor:"what" help:"List the known providers and their event types, without writing files."`
	Dir   string   `default:"." placeholder:"DIR" help:"Directory for catalog.yaml and config.yaml (${default})."`
	Force bool     `help:"Replace existing files."`
}

func (c *CatalogInitCmd) Help() string {
	return `Writes catalog.yaml with the event types of the providers, and config.yaml with the sources that turn the providers' webhooks into events. The comments in config.yaml say what to set at each provider, which environment variable holds its secret, and which URL the provider must call. Edit the files as you like.

Examples:
  mcpevents catalog init --list
  mcpevents catalog init --from github,stripe --dir my-server`
}

func (c *CatalogInitCmd) Run(g *Globals) error {
	if c.List {
		return ready.List(g.out)
	}
	providers, err := ready.Select(c.From...)
	if err != nil {
		return err
	}
	if err := ready.Write(c.Dir, providers, c.Force); err != nil {
		return err
	}
	events, config := filepath.Join(c.Dir, ready.CatalogFile), filepath.Join(c.Dir, ready.ConfigFile)
	fmt.Fprintf(g.out, "Wrote %s and %s. The comments in %s say what to set at each provider.\nThen run: mcpevents serve --catalog %s --config %s\n",
		events, config, config, events, config)
	return nil
}

type SourceCmd struct {
	Check SourceCheckCmd `cmd:"" help:"Show the events that a saved request or message would publish."`
}

type SourceCheckCmd struct {
	Config  string    `required:"" env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"The configuration with the source."`
	Catalog string    `default:"catalog.yaml" env:"MCPEVENTS_CATALOG" help:"The catalog of its workspace."`
	Source  string    `required:"" placeholder:"NAME" help:"Name of the source."`
	Request string    `required:"" placeholder:"FILE" help:"File with an HTTP request as it was sent: headers, an empty line and the body, with or without the request line. For a bus source, the message. - reads standard input."`
	At      time.Time `placeholder:"TIME" help:"When the request arrived, for signatures that expire, e.g. 2026-11-22T12:00:00Z. Default: now."`
}

func (c *SourceCheckCmd) Help() string {
	return `Prints a line of JSON for the request, or for each record of an S3 message: the outcome, the mapping that was used (counted from 1), and the document to which patterns and JSON Pointers apply. It sends nothing. It checks the signature if the secrets are in the environment. The exit code is 0 if an event would be published, and 3 if none would or the signature is not valid.

Example:
  mcpevents source check --config config.yaml --source github --request request.txt`
}

func (c *SourceCheckCmd) Run(g *Globals) error {
	cfg, err := readConfig(c.Config)
	if err != nil {
		return err
	}
	source, err := cfg.Source(c.Source)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "%s", c.Config)
	}
	cat, err := readCatalog(c.Catalog)
	if err != nil {
		return err
	}
	if err := ingest.CheckCatalog(cat, source); err != nil {
		return cfg.Locate(err)
	}
	var raw []byte
	if c.Request == "-" {
		raw, err = io.ReadAll(g.in)
	} else {
		raw, err = read("request", c.Request)
	}
	if err != nil {
		return err
	}
	if c.At.IsZero() {
		c.At = time.Now()
	}
	trials, err := ingest.Try(context.Background(), cat, source, raw, c.At, secret.FromEnvironment)
	if err != nil {
		return err
	}
	e := json.NewEncoder(g.out)
	e.SetEscapeHTML(false)
	published := false
	for _, t := range trials {
		if err := e.Encode(t); err != nil {
			return fault.Wrap(fault.Internal, err, "print")
		}
		if t.Refused() {
			return fault.New(fault.Unprocessable, "no event would be published: the signature is %s", t.Signature)
		}
		published = published || t.Kind == ingest.Accepted
	}
	if !published {
		return fault.New(fault.Unprocessable, "no event would be published")
	}
	return nil
}

func readCatalog(path string) (*catalog.Catalog, error) {
	src, err := read("catalog", path)
	if err != nil {
		return nil, err
	}
	return catalog.ParseFile(path, src)
}

func readCatalogs(files map[string]string) (map[string]*catalog.Catalog, error) {
	out := map[string]*catalog.Catalog{}
	for workspace, path := range files {
		if !auth.ValidWorkspace(workspace) {
			return nil, fault.New(fault.Invalid, "--workspace-catalog: %q is not the name of a workspace", workspace)
		}
		var err error
		if out[workspace], err = readCatalog(path); err != nil {
			return nil, err
		}
	}
	return out, nil
}
