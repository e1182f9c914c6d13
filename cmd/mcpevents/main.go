// Command mcpevents runs the stand-alone server. It is also the command line for servers that run elsewhere. [CLI] and operate.Commands
// list its commands.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/mattn/go-isatty"
	"github.com/willabides/kongplete"
	"golang.org/x/term"

	"github.com/mcp-events/mcpevents/bench/demo"
	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/tools"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operate"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

type Globals struct {
	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"MCPEVENTS_LOG_LEVEL" help:"Lowest level of log messages: ${enum}."`
	LogFormat string `default:"auto" enum:"auto,text,json" env:"MCPEVENTS_LOG_FORMAT" help:"Format of the log: text, json, or auto, which means text on a terminal and otherwise JSON."`

	in       io.Reader
	out, err io.Writer
}

// CLI declares the commands of mcpevents for the command-line parser kong.
type CLI struct {
	Globals

	Demo    DemoCmd    `cmd:"" group:"start" help:"Publish one event and show when it arrives by webhook and stream."`
	Serve   ServeCmd   `cmd:"" group:"start" help:"Run the stand-alone server: one process, one SQLite file."`
	Publish PublishCmd `cmd:"" group:"start" help:"Publish one or more events."`
	Listen  ListenCmd  `cmd:"" group:"start" help:"Receive events by webhook, stream or poll, and print each as a line of JSON."`

	Mcp     McpCmd     `cmd:"" group:"agents" help:"Serve events as MCP tools over stdio, for MCP clients that do not support events."`
	Consent ConsentCmd `cmd:"" group:"agents" help:"List, give or revoke consent to share your conversation messages with providers."`

	Catalog CatalogCmd `cmd:"" group:"configure" help:"Check a catalog of event types, apply it to a deployment on AWS, or create one for known providers."`
	Source  SourceCmd  `cmd:"" group:"configure" help:"Test the sources of a configuration."`
	Check   CheckCmd   `cmd:"" group:"configure" help:"Test any MCP Events server against the specification."`
	Bench   BenchCmd   `cmd:"" group:"configure" help:"Measure the throughput or latency of a server."`

	operate.Commands `group:"operate"`

	Keys    KeysCmd    `cmd:"" group:"maintain" help:"Rotate the sealing keys of a stand-alone server."`
	Backup  BackupCmd  `cmd:"" group:"maintain" help:"Back up a stand-alone server, which may be running, into a file."`
	Restore RestoreCmd `cmd:"" group:"maintain" help:"Create the data directory of a stand-alone server from a backup."`
	Health  HealthCmd  `cmd:"" group:"maintain" help:"Check whether a server is healthy, for example in a container's health check."`

	Completion CompletionCmd `cmd:"" group:"program" help:"Print the code that completes commands and flags in your shell."`
	Usage      HelpCmd       `cmd:"" name:"help" group:"program" help:"Show the help of a command."`
	Version    VersionCmd    `cmd:"" group:"program" help:"Print the version."`
}

const description = `Event subscriptions for MCP: publish an event once, and every subscriber receives it by webhook, stream or poll.

Examples:
  mcpevents demo                             see one event arrive, without any setup
  mcpevents serve                            run a server with the event types of catalog.yaml
  mcpevents listen --name ci.build_finished  receive events from it
  mcpevents publish --uri event://ci/build-finished --data '{"build":7,"status":"passed"}'`

const footer = `
You can set every flag with the environment variable that is shown with it.

Exit codes:
  0    success
  1    internal error, which is worth reporting
  2    wrong usage
  3    the input was refused
  4    the caller may not do this
  5    the server is unavailable, a limit is reached, or the output fails; a later try may succeed
  130  interrupted by SIGINT or SIGTERM
`

var groups = kong.ExplicitGroups([]kong.Group{
	{Key: "start", Title: "Start here:"},
	{Key: "agents", Title: "Connect agents:"},
	{Key: "configure", Title: "Configure, check and measure:"},
	{Key: "operate", Title: "Operate a server:"},
	{Key: "maintain", Title: "Maintain a stand-alone server:"},
	{Key: "program", Title: "This program:"},
	// The titles of these groups of settings are also headings of docs/reference/settings.md.
	{Key: "Access", Title: "Access:"},
	{Key: "Limits", Title: "Limits:"},
	{Key: "Events and deliveries", Title: "Events and deliveries:"},
	{Key: "Targets", Title: "Targets:"},
	{Key: "Streams and polls", Title: "Streams and polls:"},
	{Key: "Operation", Title: "Operation:"},
})

// printHelp prints the commands of the program in groups. The help of a single command looks as kong prints it.
func printHelp(o kong.HelpOptions, ctx *kong.Context) error {
	if ctx.Selected() == nil {
		o.NoExpandSubcommands, o.FlagsLast = true, true
		if err := kong.DefaultHelpPrinter(o, ctx); err != nil {
			return err
		}
		_, err := io.WriteString(ctx.Stdout, footer)
		return err
	}
	for _, n := range ctx.Model.Children {
		n.Group = nil // otherwise kong lists the subcommands in the group of their command
	}
	return kong.DefaultHelpPrinter(o, ctx)
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	cli := CLI{Globals: Globals{in: stdin, out: stdout, err: stderr}}
	type left struct{ code int } // kong.Exit leaves the parser by a panic with this value, for example after --help
	defer func() {
		if p := recover(); p != nil {
			l, ok := p.(left)
			if !ok {
				panic(p)
			}
			code = l.code
		}
	}()
	unsetEmpty()
	parser, err := kong.New(
		&cli, kong.Name("mcpevents"), kong.Description(description),
		kong.Vars{"workspace": auth.DefaultWorkspace}, kong.Writers(stdout, stderr), kong.Exit(func(c int) { panic(left{c}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Help(printHelp), groups, environment(),
	)
	if err != nil {
		panic(err) // a mistake in CLI or Globals
	}
	if os.Getenv("COMP_LINE") != "" { // set by the shell's code of [CompletionCmd]
		kongplete.Complete(parser)
	}
	parsed, err := parser.Parse(rewrite(args))
	if err != nil {
		return usage(stderr, err)
	}
	// If the flags of a group of commands have a method Run, kong accepts a command line that names the group and no command. Refuse this
	// command line, because the user must choose a command.
	if group := parsed.Selected(); group != nil && len(group.Children) > 0 {
		var names []string
		for _, command := range group.Children {
			names = append(names, strconv.Quote(command.Name))
		}
		fmt.Fprintf(stderr, "mcpevents: give a command: %s (see %s --help)\n", strings.Join(names, ", "), group.FullPath())
		return exitUsage
	}
	if name := findEmpty(parsed); name != "" {
		fmt.Fprintf(stderr, "mcpevents: %s is empty (see %s --help)\n", name, parsed.Selected().FullPath())
		return exitUsage
	}
	t := operate.Terminal{In: stdin, Out: stdout, Err: stderr, Bar: cli.bar(), Agent: agent(), Width: terminalWidth(stdout), Interactive: isTerminal(stdin)}
	return report(stderr, parsed.Run(&cli.Globals, t))
}

// rewrite replaces customary spellings, such as --version, with arguments that the command-line parser accepts.
func rewrite(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help" && !slices.Contains(args, "--help"):
		return append(slices.Clone(args[1:]), "--help")
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	}
	return args
}

// unsetEmpty removes environment variables with our prefix that are set but empty, because kong would parse the empty text. For example,
// a compose file with MCPEVENTS_QUOTA=${QUOTA} sets such a variable. On AWS, an empty variable counts as missing, too.
//
// An empty MCPEVENTS_AUTH stays set, so that kong refuses it. If it were removed, the server would use the default of --auth, which is no
// authentication.
func unsetEmpty() {
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); value == "" && strings.HasPrefix(name, config.EnvName("")) && name != config.EnvName("auth") {
			_ = os.Unsetenv(name) // fails only for names that cannot be set
		}
	}
}

// findEmpty returns the name of a flag or argument that needs a value, but was given an empty one. For example, --data=$DATA is empty if
// the variable is not set. Otherwise many commands would use the current directory, or complain about a file without a name.
func findEmpty(parsed *kong.Context) string {
	for _, p := range parsed.Path {
		name, value := "", p.Positional
		switch {
		case p.Flag != nil:
			name, value = "--"+p.Flag.Name, p.Flag.Value
		case value != nil:
			name = "<" + value.Name + ">"
		default: // a command, which has no value
			continue
		}
		if v := parsed.Value(p); (value.Required || value.Default != "") && v.Kind() == reflect.String && v.Len() == 0 {
			return name
		}
	}
	return ""
}

// environment gives every flag an environment variable, unless the flag declares its own. The flags of serve are also settings of the
// Lambda functions, so their variables contain only the name of the flag, for example MCPEVENTS_DATA. The variables of other commands
// also contain the name of the command, for example MCPEVENTS_PUBLISH_DATA, because --data has another meaning there.
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

func (g *Globals) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(strings.ToUpper(g.LogLevel))) // kong has checked the level
	o := &slog.HandlerOptions{Level: level}
	if g.LogFormat == "text" || g.LogFormat == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// terminalWidth returns the number of characters in a line of a terminal. It returns 0 if w is not a terminal.
func terminalWidth(w any) int {
	if f, ok := w.(*os.File); ok && isTerminal(w) {
		width, _, _ := term.GetSize(int(f.Fd()))
		return max(0, width)
	}
	return 0
}

// interruptible returns a context that ends when the process gets SIGINT or SIGTERM. A second signal ends the process.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// executable returns the path of this program's file. If the system does not know the path, for example on Linux without /proc, it
// returns the path with which the program was started.
func executable() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return os.Args[0]
}

type Remote struct {
	Server string `default:"http://127.0.0.1:8080" env:"MCPEVENTS_SERVER" placeholder:"URL" help:"URL of the server (${default}). If /events and /mcp are on different hosts, as on AWS without a custom domain, give the whole URL that the command needs."`
	Key    string `env:"MCPEVENTS_KEY" placeholder:"KEY" help:"API key, sent as Authorization: Bearer KEY. Prefer the variable, because other users of the machine can see arguments."`
}

func (r *Remote) server() httpcall.Server {
	return httpcall.Server{URL: r.Server, Key: r.Key, Agent: agent()}
}

// HealthCmd is the command health, for the health check of a container. The container image has no other program that can send a request.
type HealthCmd struct {
	Remote
	Timeout time.Duration `default:"3s" help:"How long to wait for the answer."`
}

func (c *HealthCmd) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	url, err := c.server().Endpoint("/healthz")
	if err != nil {
		return err
	}
	resp, body, err := c.server().Do(ctx, http.MethodGet, url, http.Header{}, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Unavailable, "%s did not answer within %s", url, c.Timeout)
	}
	if err != nil || resp.StatusCode == http.StatusOK {
		return err
	}
	var answer struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(body, &answer) // fails for the error page of a proxy, which has no reason
	return fault.New(fault.Unavailable, "%s is not healthy: %s", url, cmp.Or(answer.Reason, fmt.Sprintf("HTTP %d", resp.StatusCode)))
}

// HelpCmd shows "help" in the list of commands. [rewrite] replaces the command before it is parsed.
type HelpCmd struct {
	Command []string `arg:"" optional:"" help:"The command. Default: the program, with all commands."`
}

type VersionCmd struct{}

func (c *VersionCmd) Run(g *Globals) error {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = " " + s.Value[:12]
			}
		}
	}
	_, err := fmt.Fprintf(g.out, "mcpevents %s%s %s %s/%s\n", app.Version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

func agent() string { return "mcp-events-cli/" + app.Version }

type DemoCmd struct {
	Timeout time.Duration `default:"1m" help:"Time limit of the demo."`
}

func (c *DemoCmd) Help() string {
	return `Starts a server in a process of its own, with a free port and a temporary data directory, and a webhook receiver. Subscribes in four ways: a webhook of SEP-1803, a webhook of MCP Events, a stream of revision 2026-07-28 and a stream of 2025-11-25. Then publishes one event and prints when it arrived at each of them. Finally publishes 1,000 events, kills the server while they are published, starts it again, and waits until all events have arrived everywhere. The exit code is 0 if they did.`
}

func (c *DemoCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	log, level := slog.New(slog.DiscardHandler), "error"
	if g.LogLevel == "debug" {
		log, level = g.logger(g.err), g.LogLevel
	}
	return demo.Run(ctx, demo.Options{
		Serve: []string{executable(), "--log-level", level, "serve"}, Agent: agent(), Timeout: c.Timeout, Out: g.out, Log: log,
	})
}

// CompletionCmd prints code for a shell that completes command lines. To find the next words, this code runs mcpevents with the
// incomplete line in the environment variable COMP_LINE.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: ${enum}."`
}

func (c *CompletionCmd) Help() string {
	return `Add the line for your shell to its start file:

  bash  ~/.bashrc                   source <(mcpevents completion bash)
  zsh   ~/.zshrc                    source <(mcpevents completion zsh)
  fish  ~/.config/fish/config.fish  mcpevents completion fish | source`
}

// completions has the code for each shell. PROGRAM stands for the path of mcpevents in quotes.
var completions = map[string]string{
	"bash": "complete -o default -C PROGRAM mcpevents\n",
	"zsh":  "autoload -U +X bashcompinit && bashcompinit\ncomplete -o default -C PROGRAM mcpevents\n",
	"fish": `function __complete_mcpevents
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct); and set COMP_LINE "$COMP_LINE "
    PROGRAM
end
complete -f -c mcpevents -a "(__complete_mcpevents)"
`,
}

func (c *CompletionCmd) Run(g *Globals) error {
	program, err := os.Executable()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "find the path of this program")
	}
	// bash and zsh parse the path twice: when they read the code, and when they run the text after "complete -C". fish parses it only
	// once.
	quoted := "'" + strings.ReplaceAll(program, "'", `'\''`) + "'"
	if c.Shell != "fish" {
		quoted = `"` + quoted + `"`
	}
	_, err = fmt.Fprint(g.out, strings.ReplaceAll(completions[c.Shell], "PROGRAM", quoted))
	return fault.Wrap(fault.Unavailable, err, "print")
}

type McpCmd struct{ Remote }

func (c *McpCmd) Help() string {
	return `For local MCP clients that support tools but no events. The client starts this command like any MCP server over stdio. The tools list event types, subscribe, and read or wait for events, so the command needs no public address. Events that arrive between two calls are pushed to clients that have a channel for them: Claude Code (claude/channel), clients that subscribe to the resource events://recent, and clients that set a log level.

Example configuration, which most clients accept:
  {"mcpServers": {"events": {"command": "mcpevents", "args": ["mcp", "--server", "https://events.example.com"], "env": {"MCPEVENTS_KEY": "…"}}}}`
}

func (c *McpCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	caller, err := client.Connect(ctx, c.Server, client.Options{Key: c.Key, Agent: agent(), Log: g.logger(g.err)})
	if err != nil {
		return err
	}
	defer caller.Close()
	t := tools.New(caller)
	defer t.Close()
	name, version, _ := strings.Cut(agent(), "/")
	return t.Serve(ctx, name, version, g.in, g.out)
}

// open opens a file. The parameter what says what the file is, for error messages, for example "catalog".
func open(what, path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		hint := map[string]string{"catalog": `, or write one; "mcpevents catalog init --list" lists ready-made ones`}[what]
		return nil, fault.New(fault.Invalid, "there is no %s at %s: give its path%s", what, path, hint)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "open the %s", what)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close()
		return nil, fault.New(fault.Invalid, "%s is a directory: give the path of the %s in it", path, what)
	}
	return f, nil
}

func read(what, path string) ([]byte, error) {
	f, err := open(what, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return b, fault.Wrap(fault.Invalid, err, "read the %s", what)
}

// readConfig reads a configuration file. It returns nil if the path is empty.
func readConfig(path string) (*config.Config, error) {
	if path == "" {
		return nil, nil
	}
	src, err := read("configuration", path)
	if err != nil {
		return nil, err
	}
	return config.ParseFile(path, src)
}
