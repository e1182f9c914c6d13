package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// CompletionCmd prints the code with which a shell completes the command line. The shell then runs this program with the line in
// COMP_LINE, and the program prints the words that can follow.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: ${enum}."`
}

// Help returns the long help of the command.
func (c *CompletionCmd) Help() string {
	return `Add the line for your shell to its start file:

  bash  ~/.bashrc                   source <(mcpevents completion bash)
  zsh   ~/.zshrc                    source <(mcpevents completion zsh)
  fish  ~/.config/fish/config.fish  mcpevents completion fish | source`
}

// completions is the code for each shell. PROGRAM stands for the path of this program in quotes.
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

// Run implements the command.
func (c *CompletionCmd) Run(g *Globals) error {
	program, err := os.Executable()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "find the path of this program")
	}
	// bash runs the text after -C as a command line, so the path needs quotes of its own. fish has no such second reading.
	quoted := "'" + strings.ReplaceAll(program, "'", `'\''`) + "'"
	if c.Shell != "fish" {
		quoted = `"` + quoted + `"`
	}
	_, err = fmt.Fprint(g.out, strings.ReplaceAll(completions[c.Shell], "PROGRAM", quoted))
	return fault.Wrap(fault.Unavailable, err, "print")
}
