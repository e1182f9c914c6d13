package api

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Command is the program of a backend that speaks MCP over standard input and output. Only a stand-alone server runs commands.
type Command struct {
	// Args has the program and its arguments. They are visible to other processes of the machine, so secrets belong into Env.
	Args []string
	// Env is the environment. Of the server's own environment, the command inherits only PATH and HOME.
	Env map[string]secret.Value
	// Dir is the working directory; empty means the server's.
	Dir string
	// MemoryMiB limits the data of each process of the command; 0 means [DefaultMemoryMiB].
	MemoryMiB int
	// Idle is how long a process may be unused before the server stops it; 0 means [DefaultIdle].
	Idle time.Duration
}

// Defaults of [Command].
const (
	DefaultMemoryMiB = 2048
	DefaultIdle      = 10 * time.Minute
)

// CommandScheme is the scheme of [Command.URL]. In the configuration, URLs only have http and https.
const CommandScheme = "stdio"

// URL returns the address under which the gateway reaches the command of a backend. The address changes with each setting of the command,
// because a changed command is another server.
func (c *Command) URL(workspace, name string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %d %s", workspace, name, c.Args, c.Dir, c.MemoryMiB, c.Idle)
	for _, variable := range slices.Sorted(maps.Keys(c.Env)) {
		fmt.Fprintf(h, " %q %s", variable, c.Env[variable].Fingerprint())
	}
	return CommandScheme + "://" + name + "/" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}
