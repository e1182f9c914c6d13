//go:build unix

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

const busSource = `  - name: uploads
    from: s3
    events:
      - match: {eventName: [{prefix: "ObjectCreated:"}]}
        name: storage.object_created
        variables: {bucket: /s3/bucket/name}
        data: {key: /s3/object/key, size: /s3/object/size}
`

// checking runs mcpevents source check with a configuration and the repository's catalog.
type checking struct{ binary, config, catalog string }

// trial is a line of its output.
type trial struct {
	Kind, Signature, Reason, Name, URI, ID string
	Mapping                                int
	Data, Document                         json.RawMessage
	Faults                                 []struct{ Pointer, Message string }
}

// run checks a request in a file or on standard input, with or without the secrets.
func (c checking) run(t *testing.T, source, request string, stdin bool, args ...string) (code int, trials []trial, errs string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "request")
	expect.OK(t, os.WriteFile(file, []byte(request), 0o600))
	var out, stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), c.binary, append([]string{"source", "check", "--config", c.config, "--catalog", c.catalog, "--source", source}, args...)...)
	cmd.Env = append(os.Environ(), secretsOfSources()...)
	if stdin {
		cmd.Args, cmd.Stdin = append(cmd.Args, "--request", "-"), strings.NewReader(request)
	} else {
		cmd.Args = append(cmd.Args, "--request", file)
	}
	cmd.Stdout, cmd.Stderr = &out, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		trials = append(trials, decode[trial](t, []byte(line)))
	}
	return cmd.ProcessState.ExitCode(), trials, stderr.String()
}

// TestSourceCheck checks saved requests with the built command.
func TestSourceCheck(t *testing.T) {
	t.Parallel()
	c := checking{harness.Binary(t, "./cmd/mcpevents", false), filepath.Join(t.TempDir(), "config.yaml"), filepath.Join(harness.Root(t), "catalog.yaml")}
	expect.OK(t, os.WriteFile(c.config, []byte(githubSource+busSource), 0o600))
	saved := func(action, line, end string) string {
		body := pullBody(action, "site", 7)
		var b strings.Builder
		b.WriteString(line)
		for name, values := range schemeOf("github").Headers("d-1", body, time.Now()) {
			b.WriteString(name + ": " + values[0] + end)
		}
		return b.String() + end + string(body)
	}
	good := func(t *testing.T, code int, got []trial, errs string) {
		t.Helper()
		if code != 0 || len(got) != 1 || errs != "" {
			t.Fatalf("exit code %d, %+v, %s", code, got, errs)
		}
		want := trial{
			Kind: "accepted", Signature: "verified", Mapping: 1, Name: "github.pull_request", ID: "d-1", URI: "event://github/acme/site/pull_request",
			Data: json.RawMessage(`{"action":"opened","number":7,"pull_request":{"author":"octocat","title":"Change <it>"}}`), Document: got[0].Document,
		}
		if string(marshal(t, got[0])) != string(marshal(t, want)) || !strings.Contains(string(want.Document), `"x-github-event":"pull_request"`) {
			t.Errorf("got %+v", got[0])
		}
		if strings.Contains(strings.ToLower(string(want.Document)), "x-hub-signature") {
			t.Errorf("the document contains the signature: %s", want.Document)
		}
	}
	t.Run("SRC-01 a saved request with a request line", func(t *testing.T) {
		code, got, errs := c.run(t, "github", saved("opened", "POST /sources/github HTTP/1.1\r\n", "\r\n"), false)
		good(t, code, got, errs)
	})
	t.Run("SRC-01 a request on standard input", func(t *testing.T) {
		code, got, errs := c.run(t, "github", saved("opened", "", "\n"), true)
		good(t, code, got, errs)
	})
	for name, tt := range map[string]struct{ source, request, kind, want string }{
		"SRC-03 an unmatched request":        {"github", saved("labeled", "", "\n"), "unmatched", "no event would be published"},
		"SRC-02 an unsigned request":         {"github", strings.Replace(saved("opened", "", "\n"), "sha256=", "sha256=0", 1), "unverified", "not verified"},
		"SRC-01 input that is not a request": {"github", "nothing", "", "not an HTTP request"},
		"SRC-01 an unknown source":           {"hub", "", "", `there is no source "hub" (there are: github, uploads)`},
	} {
		t.Run(name, func(t *testing.T) {
			code, got, errs := c.run(t, tt.source, tt.request, false)
			kind := ""
			if len(got) > 0 {
				kind = got[0].Kind
			}
			if code != 3 || kind != tt.kind || !strings.Contains(errs, tt.want) {
				t.Errorf("exit code %d, %+v, %s, want 3, %q and %q", code, got, errs, tt.kind, tt.want)
			}
		})
	}
	t.Run("SRC-01 a bus message prints a line for each record", func(t *testing.T) {
		record := `{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"k","size":1}}}`
		code, got, errs := c.run(t, "uploads", "\n{\"Records\":["+record+","+strings.Replace(record, "Created", "Removed", 1)+"]}\n", false)
		if code != 0 || len(got) != 2 || got[0].URI != "event://storage/b/object-created" || got[1].Kind != "unmatched" || errs != "" {
			t.Errorf("exit code %d, %+v, %s", code, got, errs)
		}
	})
	t.Run("SRC-01 missing flags are refused", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), c.binary, "source", "check")
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
		}
	})
}
