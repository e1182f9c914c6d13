//go:build unix

package harness

import (
	crand "crypto/rand"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mcpevents/localstack/runner"
	"mcpevents/shared/awsx"
	"mcpevents/test/awslocal"
)

// AWSOptions choose how the functions run on local AWS. The zero value is the
// deployment template with keys for [Callers] that sends webhooks anywhere.
type AWSOptions struct {
	// Env is put over the environment of every function.
	Env map[string]string
	// Visibility replaces the visibility timeout of all queues, for tests in which
	// work is lost; 0 leaves the template's.
	Visibility time.Duration
}

// AWS is the functions of template.yaml on local AWS: real binaries as processes,
// on emulators of DynamoDB, SQS and KMS.
type AWS struct {
	Target
	stack  *runner.Stack
	out    *output
	killed atomic.Int64
}

// StartAWS starts the emulators, unless they run already, and a deployment of its
// own on them, which ends with the test.
func StartAWS(tb testing.TB, o AWSOptions) *AWS {
	tb.Helper()
	ends := awslocal.Start(tb, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	a := &AWS{out: &output{}}
	began := time.Now()
	stack, err := runner.Start(tb.Context(), runner.Options{
		Template:   filepath.Join(Root(tb), "template.yaml"),
		Name:       "test-" + strings.ToLower(crand.Text()[:8]),
		Parameters: map[string]string{"Auth": "keys", "AllowInsecureTargets": "true"},
		Env:        o.Env,
		Region:     awslocal.Region,
		Endpoints:  runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack},
		Binaries:   functions(tb),
		Visibility: o.Visibility,
		Speed:      30, // retries that are due are looked for every two seconds
		Progress:   a.out,
		Output:     a.out,
	})
	if err != nil {
		tb.Fatalf("start local AWS: %v\n%s", err, a.out.tail(8<<10))
	}
	a.stack = stack
	tb.Cleanup(func() {
		stack.Close()
		for _, denied := range stack.Denied() {
			tb.Errorf("the template's policies do not let the functions do what they need: %s", denied)
		}
		keepOutput(tb, "the functions", a.out)
		for id, s := range stack.Stats() {
			tb.Logf("%s: %d invocations, %d errors, %d timeouts, %d starts", id, s.Invocations, s.Errors, s.Timeouts, s.ColdStarts)
		}
	})
	a.Name, a.MCP, a.Events = "local AWS", stack.URL()+"/mcp", stack.URL()+"/events"
	var config string
	config, a.Keys = keysConfig(Callers())
	a.apply(tb, ends.DynamoDB, config)
	tb.Logf("local AWS is up after %v", time.Since(began))
	return a
}

// functions builds all functions, once per test process, and returns the
// executables by CodeUri. They are built without the race detector: a process
// serves one invocation at a time, and what they share with the embedded server is
// looked at there.
func functions(tb testing.TB) map[string]string {
	tb.Helper()
	mains, err := filepath.Glob(filepath.Join(Root(tb), "functions", "*", "main.go"))
	if err != nil || len(mains) == 0 {
		tb.Fatalf("no functions: %v", err)
	}
	binaries := map[string]string{}
	for _, main := range mains {
		uri := "functions/" + filepath.Base(filepath.Dir(main))
		binaries[uri] = Binary(tb, "./"+uri, false)
	}
	return binaries
}

// apply writes the catalog and the configuration as an operator does, and waits
// until the functions have them.
func (a *AWS) apply(tb testing.TB, dynamodb, config string) {
	tb.Helper()
	cmd := exec.CommandContext(
		tb.Context(), Binary(tb, "./cmd/mcpevents", false), "catalog", "apply", filepath.Join(Root(tb), "catalog.yaml"),
		"--config", writeFile(tb, tb.TempDir(), "config.yaml", config), "--table", a.stack.Outputs()["SettingsTable"],
	)
	cmd.Env = append(
		environment(), "AWS_ENDPOINT_URL="+dynamodb, "AWS_REGION="+awslocal.Region,
		"AWS_ACCESS_KEY_ID="+awslocal.AccessKey, "AWS_SECRET_ACCESS_KEY="+awslocal.SecretKey,
	)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("mcpevents catalog apply: %v\n%s", err, out)
	}
	Eventually(tb, Patience, "the functions use the applied catalog", func() bool {
		list, err := a.Modern("alice").Try(tb.Context(), "resources/templates/list", nil)
		return err == nil && list.Error == nil && strings.Contains(string(list.Body), "event://")
	})
}

// Kill kills a process of a function on the way of an event or of the MCP
// endpoint, one that works if there is one.
func (a *AWS) Kill() {
	ids := []string{"PublishFunction", "FanoutFunction", "DispatchFunction", "StreamFunction"}
	if a.stack.Kill(ids[rand.IntN(len(ids))]) != "" {
		a.killed.Add(1)
	}
}

// KillUntil kills processes at random times, perSecond of them on average, until
// done is closed.
func (a *AWS) KillUntil(done <-chan struct{}, perSecond float64) {
	for {
		timer := time.NewTimer(time.Duration(rand.ExpFloat64() / perSecond * float64(time.Second)))
		select {
		case <-timer.C:
			a.Kill()
		case <-done:
			timer.Stop()
			return
		}
	}
}

// Killed counts the processes that were killed.
func (a *AWS) Killed() int { return int(a.killed.Load()) }

// Requests are the requests to AWS so far, by function; "mappings" are those of
// the event source mappings, which AWS bills too.
func (a *AWS) Requests() map[string]awsx.Counts { return a.stack.Requests() }

// Invocations counts the calls of a function so far.
func (a *AWS) Invocations(function string) int { return a.stack.Stats()[function].Invocations }
