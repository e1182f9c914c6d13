package config

import (
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// commandFields returns the members of a backend that is a command.
func (p *parser) commandFields(c *api.Command) []strictyaml.Field {
	return []strictyaml.Field{
		strictyaml.Var("command", &c.Args, p.readCommand),
		strictyaml.Var("env", &c.Env, p.readEnvironment),
		strictyaml.Var("dir", &c.Dir, p.file.NonEmpty),
		strictyaml.Var("memoryMiB", &c.MemoryMiB, p.file.Int(16, 1<<20)),
		strictyaml.Var("idle", &c.Idle, p.duration(time.Second, 24*time.Hour)),
	}
}

// checkCommand makes a backend a command if one is given, and checks that the other members fit to that.
func (p *parser) checkCommand(n *strictyaml.Node, b *api.Backend, c *api.Command, given map[string]bool, say func(string) string) {
	switch {
	case given["command"] && given["url"]:
		p.file.Add(n.Line, "%s", say("only one of url and command is possible"))
	case given["command"]:
		b.Command, b.URL = c, c.URL(b.Workspace, b.Name)
		for _, member := range []string{"headers", "oauth", "forwardToken", "credentials", "exchange"} {
			if given[member] {
				p.file.Add(n.Line, "%s is for a backend with a url; pass a command its credentials in env", say(member))
			}
		}
	case !given["url"]:
		p.file.Add(n.Line, "%s is missing", say("url or command"))
	}
	for _, member := range []string{"env", "dir", "memoryMiB", "idle"} {
		if given[member] && !given["command"] {
			p.file.Add(n.Line, "%s is for a backend with a command", say(member))
		}
	}
}

// maxArguments limits the number of a command's arguments.
const maxArguments = 200

func (p *parser) readCommand(n *strictyaml.Node, what string) (args []string) {
	for _, it := range p.file.Items(n, what, maxArguments) {
		arg := p.file.String(it, what)
		if strings.ContainsRune(arg, 0) || len(arg) > 8192 {
			p.file.Add(it.Line, "%s: an argument is too long or has a NUL", what)
		}
		args = append(args, arg)
	}
	if len(args) == 0 || args[0] == "" {
		p.file.Add(n.Line, "%s has no program, such as [npx, -y, NAME]", what)
	}
	return args
}

// readEnvironment reads environment variables. A variable whose name suggests a secret needs a reference.
func (p *parser) readEnvironment(n *strictyaml.Node, what string) map[string]secret.Value {
	out := map[string]secret.Value{}
	for _, m := range p.file.Members(n, what) {
		if !envName.MatchString(m.Key) {
			p.file.Add(m.Line, "%s: %q is not the name of an environment variable", what, strictyaml.Clip(m.Key))
			continue
		}
		out[m.Key] = p.readValue(m.Value, what+" "+m.Key, carriesCredentials(m.Key))
	}
	return out
}
