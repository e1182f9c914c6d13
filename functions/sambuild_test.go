package functions_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// oneFunction is a template with one function. SAM does not use its cache if it builds one function of several.
const oneFunction = `Transform: AWS::Serverless-2016-10-31
Resources:
  FanoutFunction:
    Type: AWS::Serverless::Function
    Metadata: {BuildMethod: go1.x, BuildProperties: {TrimGoPath: true}}
    Properties: {CodeUri: functions/fanout, Handler: bootstrap, Runtime: provided.al2023, Architectures: [arm64]}
`

// TestSAMBuild checks that a build always follows the source, even if only another package than the function's
// changed. It builds with the target of the Makefile, and with the settings in samconfig.toml only. A function that imports
// only the changed package stands in for the real one, which takes a minute to compile.
func TestSAMBuild(t *testing.T) {
	t.Parallel()
	ctx := t.Context() // without a time limit, because the first run installs SAM
	tree := sourceTree(t)
	write(t, filepath.Join(tree, "template.yaml"), oneFunction)
	write(t, filepath.Join(tree, "functions", "fanout", "main.go"), "package main\n\nimport _ \"github.com/mcp-events/mcpevents/shared/marker\"\n\nfunc main() {}\n")
	expect.OK(t, os.Mkdir(filepath.Join(tree, "shared", "marker"), 0o755))
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.WaitDelay = tree, 5*time.Second
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "SAM_CLI_TELEMETRY=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, out)
		}
	}
	built := func() []byte {
		t.Helper()
		return expect.Value(os.ReadFile(filepath.Join(tree, ".aws-sam", "build", "FanoutFunction", "bootstrap")))(t)
	}
	change := func(marker string) {
		t.Helper()
		write(t, filepath.Join(tree, "shared", "marker", "marker.go"), "package marker\n\nfunc init() { println(\""+marker+"\") }\n")
	}
	where := expect.Value(exec.CommandContext(ctx, "make", "-s", "-C", tree, "sam-path").Output())(t)
	sam := string(bytes.TrimSpace(where))
	change("the first marker")
	run("make", "sam-build")
	t.Run("AWS-01 make sam-build picks up a change of a shared package", func(t *testing.T) {
		change("the second marker")
		run("make", "sam-build")
		if !bytes.Contains(built(), []byte("the second marker")) {
			t.Error("the binary does not contain the change")
		}
	})
	t.Run("AWS-01 sam build picks up a change of a shared package", func(t *testing.T) {
		change("the third marker")
		run(sam, "build")
		if !bytes.Contains(built(), []byte("the third marker")) {
			t.Error("the binary does not contain the change")
		}
	})
}

// sourceTree copies the sources that a build needs, and the files with the names.
func sourceTree(t *testing.T, names ...string) string {
	t.Helper()
	tree := t.TempDir()
	for _, name := range []string{"functions", "shared", "tools"} {
		expect.OK(t, os.CopyFS(filepath.Join(tree, name), os.DirFS("../"+name)))
	}
	for _, name := range append([]string{"go.mod", "go.sum", "samconfig.toml", "Makefile"}, names...) {
		src := expect.Value(os.ReadFile("../" + name))(t)
		write(t, filepath.Join(tree, name), string(src))
	}
	return tree
}

func write(t *testing.T, file, content string) {
	t.Helper()
	expect.OK(t, os.WriteFile(file, []byte(content), 0o644))
}
