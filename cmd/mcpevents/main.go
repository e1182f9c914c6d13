// Command mcpevents is the whole product on one machine, and the tool for those that run it elsewhere. A command is a
// struct with its flags, and a Run that calls a package; [CLI] and operate.Commands list them all.
//
// Every flag is an environment variable too; --help names it. What the exit codes
// mean is in exit.go.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/mattn/go-isatty"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operate"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
)

// Globals are the flags of every command.
type Globals struct {
	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"MCPEVENTS_LOG_LEVEL" help:"Log messages of this level and above: ${enum}."`
	LogFormat string `default:"auto" enum:"auto,text,json" env:"MCPEVENTS_LOG_FORMAT" help:"Format of the log: text, json, or auto, which is text on a terminal and else JSON."`

	in       io.Reader
	out, err io.Writer
}

// CLI is the command line.
type CLI struct {
	Globals

	Serve   ServeCmd   `cmd:"" help:"Serve events: one process, one SQLite file."`
	Publish PublishCmd `cmd:"" help:"Publish an event, or many."`
	Listen  ListenCmd  `cmd:"" help:"Receive events, as webhooks or on a stream, and print each as a line of JSON."`
	Mcp     McpCmd     `cmd:"" help:"Serve tools over stdio that subscribe to events, for MCP clients that know none."`
	Consent ConsentCmd `cmd:"" help:"See who gets what you say in conversations, and give or revoke consent to it."`
	Catalog CatalogCmd `cmd:"" help:"Check a catalog of event types, write it to a deployment on AWS, or begin one with those of known providers."`
	Source  SourceCmd  `cmd:"" help:"Try the sources of a configuration."`
	Demo    DemoCmd    `cmd:"" help:"Publish one event and show it arrive by webhook and stream, with times."`
	Check   CheckCmd   `cmd:"" help:"Try any server of MCP Events against the specification."`
	Bench   BenchCmd   `cmd:"" help:"Measure throughput or latency of a server."`
	Keys    KeysCmd    `cmd:"" help:"Rotate the keys of an embedded server."`
	Backup  BackupCmd  `cmd:"" help:"Back up a running embedded server into a file, which holds its keys."`
	Restore RestoreCmd `cmd:"" help:"Make the data directory of an embedded server from a backup."`
	Health  HealthCmd  `cmd:"" help:"Ask a server whether it works; for health checks of containers."`
	Version VersionCmd `cmd:"" help:"Print the version."`

	operate.Commands
}

const description = `Event subscriptions for MCP: publish an event once, and it reaches webhooks and open streams.

Every flag is also an environment variable, named with it below. Exit codes: 0 done; 1 a fault of this program; 2 wrong usage; 3 the input was refused; 4 the caller is not allowed to do this; 5 the server is unavailable or a limit is reached, and trying again may help; 130 interrupted by SIGINT or SIGTERM before it was done.`

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program; tests call it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	cli := CLI{Globals: Globals{in: stdin, out: stdout, err: stderr}}
	type left struct{ code int } // how kong's --help leaves
	defer func() {
		if p := recover(); p != nil {
			l, ok := p.(left)
			if !ok {
				panic(p)
			}
			code = l.code
		}
	}()
	parser, err := kong.New(
		&cli, kong.Name("mcpevents"), kong.Description(description),
		kong.Vars{"workspace": auth.DefaultWorkspace}, kong.Writers(stdout, stderr), kong.Exit(func(c int) { panic(left{c}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		environment(),
	)
	if err != nil {
		panic(err) // a mistake in the structs above; no input leads here
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return usage(stderr, err)
	}
	t := operate.Terminal{In: stdin, Out: stdout, Err: stderr, Bar: cli.bar(), Agent: agent()}
	return report(stderr, parsed.Run(&cli.Globals, t))
}

// environment gives every flag that has none a variable. Those of serve are the
// settings that the functions have too: MCPEVENTS_FLAG. Those of other commands have the
// command in their name, because --data of serve and --data of publish are not the same.
func environment() kong.Option {
	var walk func(n *kong.Node, prefix string)
	walk = func(n *kong.Node, prefix string) {
		for _, f := range n.Flags {
			if f.Name != "help" && len(f.Envs) == 0 {
				f.Envs = []string{config.EnvName(prefix + f.Name)}
				f.Tag.Envs = f.Envs
			}
		}
		for _, child := range n.Children {
			if prefix == "" && child.Name == "serve" {
				walk(child, "")
			} else {
				walk(child, prefix+child.Name+"-")
			}
		}
	}
	return kong.PostBuild(func(k *kong.Kong) error {
		walk(k.Model.Node, "")
		return nil
	})
}

// logger makes the log of a command.
func (g *Globals) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(strings.ToUpper(g.LogLevel))) // one of the enum
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: metric.Plain}
	if g.LogFormat == "text" || g.LogFormat == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// isTerminal reports whether someone watches.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// interruptible is a context that ends with SIGINT or SIGTERM; a second signal
// ends the program.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
