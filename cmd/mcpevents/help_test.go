package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTheProgramAloneShowsItsCommandsInGroups(t *testing.T) {
	code, help, errs := command(t, "")
	expect.MustEqual(t, "the exit code", code, exitDone)
	expect.MustEqual(t, "the error output", errs, "")
	for _, group := range []string{
		"Start here:\n  demo ", "Connect agents:\n  mcp ", "Configure, check and measure:\n  catalog ", "Operate a server:\n  subscriptions ",
		"Maintain a stand-alone server:\n  keys ", "This program:\n  completion ",
	} {
		expect.Contains(t, "the help", help, "\n"+group)
	}
	expect.Lacks(t, "the help", help, "subscriptions list")
	for line := range strings.Lines(help) {
		expect.AtMost(t, "the length of the line "+line, len(line), 101)
	}
	for _, spelling := range []string{"--help", "-h", "help"} {
		code, same, _ := command(t, "", spelling)
		expect.Equal(t, spelling+": the exit code", code, exitDone)
		expect.Equal(t, spelling+": the help", same, help)
	}
}

func TestHelpOfACommand(t *testing.T) {
	for _, of := range []string{"publish", "subscriptions", "subscriptions end", "catalog check"} {
		code, got, _ := command(t, "", append([]string{"help"}, strings.Fields(of)...)...)
		_, want, _ := command(t, "", append(strings.Fields(of), "--help")...)
		if code != exitDone || got != want || !strings.HasPrefix(got, "Usage: mcpevents "+of+" ") {
			t.Errorf("help %s: exit code %d and\n%s\nwant\n%s", of, code, got, want)
		}
	}
	if _, help, _ := command(t, "", "help", "subscriptions"); !strings.Contains(help, "\nCommands:\n  list ") && !strings.Contains(help, "\nCommands:\n  subscriptions list ") {
		t.Errorf("help subscriptions lists no commands:\n%s", help)
	}
	fails(t, "help nonsense", exitUsage, "nonsense is not a command")
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"mcpevents sub":                        {"subscriptions"},
		"mcpevents subscriptions e":            {"end"},
		"mcpevents subscriptions list --st":    {"--state"},
		"mcpevents serve --auth ":              {"jwt", "keys", "none"},
		"mcpevents completion ":                {"bash", "fish", "zsh"},
		"mcpevents subscriptions -o ":          {"json", "name", "yaml"},
		"mcpevents nonsense --no-such-flag-at": nil,
	} {
		t.Setenv("COMP_LINE", line)
		code, out, errs := command(t, "")
		got := strings.Fields(out)
		for _, w := range want {
			expect.Contains(t, line, " "+strings.Join(got, " ")+" ", " "+w+" ")
		}
		if code != exitDone || errs != "" || want == nil && len(got) > 0 {
			t.Errorf("%q: exit code %d, %q: %s", line, code, got, errs)
		}
	}
}

func TestTheCodeOfShells(t *testing.T) {
	for shell, want := range map[string]string{
		"bash": `^complete -o default -C "'/.*'" mcpevents\n$`,
		"zsh":  `^autoload -U \+X bashcompinit && bashcompinit\ncomplete -o default -C "'/.*'" mcpevents\n$`,
		"fish": `(?s)^function __complete_mcpevents\n.*\n    '/.*'\nend\ncomplete -f -c mcpevents -a "\(__complete_mcpevents\)"\n$`,
	} {
		if code, out, _ := command(t, "", "completion", shell); code != exitDone || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s: exit code %d and %s, want %s", shell, code, out, want)
		}
	}
}
