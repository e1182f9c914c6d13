//go:build linux

package image

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// service returns the lines of the systemd unit by their keys. A key may have several lines.
func service(t *testing.T) map[string][]string {
	t.Helper()
	unit := map[string][]string{}
	for line := range strings.Lines(read(t, "packaging/mcpevents.service")) {
		line = strings.TrimSpace(line)
		if key, value, ok := strings.Cut(line, "="); ok && line[0] != '#' {
			unit[key] = append(unit[key], value)
		}
	}
	return unit
}

// TestTheUnit checks the unit with systemd's own tool, where there is one, and always the lines on which the documentation relies.
func TestTheUnit(t *testing.T) {
	t.Parallel()
	unit := service(t)
	t.Run("RCH-10 it is hardened, restarts after a crash, and reloads on SIGHUP", func(t *testing.T) {
		for key, want := range map[string]string{
			"DynamicUser": "yes", "StateDirectory": "mcpevents", "ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "",
			"Restart": "on-failure", "ExecReload": "/bin/kill -HUP $MAINPID", "ExecStart": "/usr/bin/mcpevents serve",
			"EnvironmentFile": "-/etc/mcpevents/environment",
		} {
			if got := unit[key]; len(got) != 1 || got[0] != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
	})
	t.Run("RCH-10 systemd accepts it", func(t *testing.T) {
		tool, err := exec.LookPath("systemd-analyze")
		if err != nil {
			t.Log("systemd-analyze is not installed here")
			return
		}
		file := filepath.Join(t.TempDir(), "mcpevents.service")
		text := strings.ReplaceAll(read(t, "packaging/mcpevents.service"), "/usr/bin/mcpevents", "/bin/true") // the tool looks for the program
		expect.OK(t, os.WriteFile(file, []byte(text), 0o600))
		if out, err := exec.CommandContext(t.Context(), tool, "verify", file).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// runService runs the binary with the unit's command and settings, but with folders of the test and at a free port.
func runService(t *testing.T, binary string) {
	unit, folder := service(t), t.TempDir()
	config := read(t, "packaging/config.yaml")
	start := func(config string) *exec.Cmd {
		t.Helper()
		expect.OK(t, os.WriteFile(filepath.Join(folder, "config.yaml"), []byte(config), 0o600))
		program, args, _ := strings.Cut(unit["ExecStart"][0], " ")
		cmd := exec.CommandContext(t.Context(), binary, strings.Fields(args)...)
		cmd.Env = []string{"MCPEVENTS_ADDR=127.0.0.1:0", "MCPEVENTS_LOG_FORMAT=text"}
		for _, line := range unit["Environment"] {
			for setting := range strings.FieldsSeq(line) {
				setting = strings.NewReplacer("/etc/mcpevents", folder, "/var/lib/mcpevents", filepath.Join(folder, "data")).Replace(setting)
				cmd.Env = append(cmd.Env, setting)
			}
		}
		expect.Equal(t, "the program of the unit", program, "/usr/bin/mcpevents")
		return cmd
	}
	expect.OK(t, os.WriteFile(filepath.Join(folder, "catalog.yaml"), []byte(read(t, "catalog.yaml")), 0o600))
	out, err := start(config).CombinedOutput()
	final := strings.Fields(unit["RestartPreventExitStatus"][0])
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !slices.Contains(final, strconv.Itoa(exit.ExitCode())) {
		t.Errorf("got %v, want an exit code after which systemd does not restart it: %s", err, out)
	}
	expect.Contains(t, "the output", string(out), "config")
	config = regexp.MustCompile(`(?m)^#(keys:|  - )`).ReplaceAllString(config, "$1")
	cmd := start(strings.ReplaceAll(config, "64-hexadecimal-digits", strings.Repeat("ab", 32)))
	log := expect.Value(cmd.StderrPipe())(t)
	expect.OK(t, cmd.Start())
	var lines []string
	serves := false
	for s := bufio.NewScanner(log); s.Scan(); {
		lines = append(lines, s.Text())
		if strings.Contains(s.Text(), "msg=serving") {
			serves = true
			expect.OK(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	if err := cmd.Wait(); err != nil && serves {
		t.Errorf("it ends with %v", err)
	}
	if !serves {
		t.Errorf("it does not serve:\n%s", strings.Join(lines, "\n"))
	}
}
