//go:build !noemulators

package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestTheBinary runs the built program, from outside.
func TestTheBinary(t *testing.T) {
	bin := harness.Binary(t, "./cmd/mcpevents", false)
	t.Run("OPS-10 an interrupted replay continues on the server, and the command says so", func(t *testing.T) { testInterruptedReplay(t, bin) })
	t.Run("OPS-16 an event that was accepted before a backup is delivered after its restore", func(t *testing.T) { testRestore(t, bin) })
	t.Run("Ctrl-C interrupts a benchmark together with its server", func(t *testing.T) { testInterruptedBench(t, bin) })
	t.Run("the demo loses nothing when it kills its server", func(t *testing.T) { testDemo(t, bin) })
	t.Run("a shell completes a command, wherever the program is", func(t *testing.T) { testCompletion(t, bin) })
}

// testDemo runs the demo with settings that would stop another server from starting, and with an output that cannot be written.
func testDemo(t *testing.T, bin string) {
	demo := func(out io.Writer, args ...string) (errs string, err error) {
		cmd, said := exec.CommandContext(t.Context(), bin, append([]string{"demo"}, args...)...), &strings.Builder{}
		cmd.Env = append(os.Environ(), "MCPEVENTS_AUTH=unknown", "MCPEVENTS_CONFIG=/missing.yaml")
		cmd.Stdout, cmd.Stderr = out, said
		err = cmd.Run()
		return said.String(), err
	}
	var out strings.Builder
	errs, err := demo(&out)
	expect.OK(t, err)
	expect.Equal(t, "the errors", errs, "")
	for _, w := range []string{"webhook, SEP-1803", "webhook, Events", "stream 2026-07-28", "stream 2025-11-25"} {
		expect.Contains(t, "the output", out.String(), fmt.Sprintf("%-18s all 1,000 arrived\n", w))
	}
	expect.Equal(t, "the verified signatures in "+out.String(), strings.Count(out.String(), "signature verified"), 2)
	expect.Contains(t, "the output", out.String(), "killed with SIGKILL", "running again")
	expect.Lacks(t, "the output", out.String(), "whsec_")

	errs, err = demo(expect.Value(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t))
	expect.True(t, "the demo fails", err != nil)
	expect.Contains(t, "the errors", errs, "no space left on device\n")

	errs, err = demo(io.Discard, "--timeout", "1ms")
	expect.True(t, "the demo fails", err != nil)
	expect.Contains(t, "the errors", errs, "the demo did not end within 1ms\n")
}

// testCompletion has bash evaluate the printed code, with a function complete that runs the command of -C as bash does.
func testCompletion(t *testing.T, bin string) {
	b := expect.Value(os.ReadFile(bin))(t)
	awkward := filepath.Join(t.TempDir(), "Ada's programs")
	expect.OK(t, os.Mkdir(awkward, 0o755))
	awkward = filepath.Join(awkward, "mcpevents")
	expect.OK(t, os.WriteFile(awkward, b, 0o755))
	const script = `complete() { COMP_LINE="mcpevents deadl" COMP_POINT=15 bash -c "$4"; }; eval "$("$0" completion bash)"`
	out, err := exec.CommandContext(t.Context(), "bash", "-c", script, awkward).CombinedOutput()
	expect.OK(t, err)
	expect.Equal(t, "the output", string(out), "deadletters\n")
}

func testInterruptedReplay(t *testing.T, bin string) {
	o := startOperated(t)
	o.status.Store(413)
	const letters = 12
	for i := range letters {
		o.publish(fmt.Sprintf("evt_%d", i))
	}
	expect.Eventually(o, "the dead letters", func() bool { return len(o.items("deadletters")) == letters })
	o.status.Store(200)

	to, _ := url.Parse(o.URL)
	proxy, looked := httputil.NewSingleHostReverseProxy(to), make(chan bool, 100)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(w, r)
		looked <- r.Method == http.MethodGet
	}))
	defer front.Close()
	replay := exec.Command(bin, "deadletters", "replay", "--rate", "1", "--server", front.URL)
	var errs strings.Builder
	replay.Stderr = &errs
	expect.OK(t, replay.Start())
	for !<-looked { // until the command asks for the replay's progress
	}
	expect.OK(t, replay.Process.Signal(os.Interrupt))
	_ = replay.Wait()
	expect.Equal(t, "OPS-10: the exit code after an interrupt", replay.ProcessState.ExitCode(), exitInterrupted)
	want := regexp.MustCompile(`^The replay continues on the server\. To watch it: mcpevents replays watch (\S+)\. To cancel it: mcpevents replays cancel \S+
mcpevents: interrupted
$`)
	id := want.FindStringSubmatch(errs.String())
	if id == nil {
		t.Fatalf("OPS-10: got %q on stderr, want %s", &errs, want)
	}
	out, err := exec.Command(bin, "replays", "cancel", id[1], "--json").Output()
	if err != nil || !strings.Contains(string(out), `"state":"canceled"`) || !strings.Contains(string(out), fmt.Sprintf(`"total":%d`, letters)) {
		t.Errorf("OPS-10: got %s, %v, want a canceled replay of %d dead letters", out, err, letters)
	}
}

// testInterruptedBench sends the interrupt to the whole process group, as a terminal does.
func testInterruptedBench(t *testing.T, bin string) {
	dir := t.TempDir()
	bench := exec.Command(bin, "bench", "--events", "1000000", "--data", dir)
	bench.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs strings.Builder
	bench.Stderr = &errs
	expect.OK(t, bench.Start())
	expect.Eventually(t, "the server's first published events", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "mcpevents.db-wal"))
		return len(files) == 1 && expect.Value(os.Stat(files[0]))(t).Size() > 1<<20
	})
	expect.OK(t, syscall.Kill(-bench.Process.Pid, syscall.SIGINT))
	_ = bench.Wait()
	expect.Equal(t, "the exit code after "+errs.String(), bench.ProcessState.ExitCode(), exitInterrupted)
}

// testRestore tests that a backup of a running server contains an event that its endpoint refused, after the server is killed.
func testRestore(t *testing.T, bin string) {
	var works atomic.Bool
	arrived := make(chan string, 100)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived <- fmt.Sprint(works.Load(), " ", r.Header.Get("Webhook-Id")); !works.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer endpoint.Close()
	dir := t.TempDir()
	backup := filepath.Join(dir, "backup.tar.gz")
	serve := func(data string) (url string, kill func()) {
		cmd := exec.Command(bin, "--log-format", "json", "serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(dir, data),
			"--catalog", "../../catalog.yaml", "--allow-insecure-targets", "--retry-schedule", "0s,2s,2s,2s,2s,2s,2s,2s,2s,2s")
		log := expect.Value(cmd.StderrPipe())(t)
		expect.OK(t, cmd.Start())
		kill = func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
		t.Cleanup(kill)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if at := regexp.MustCompile(`"events":"(.*)/events"`).FindStringSubmatch(lines.Text()); at != nil {
				expect.Contains(t, "the log of the start", lines.Text(), `"console":"`+at[1]+`/console/"`)
				go func() { _, _ = io.Copy(io.Discard, log) }()
				return at[1], kill
			}
		}
		t.Fatal("the server did not start")
		return "", nil
	}
	run := func(args ...string) string {
		out, err := exec.Command(bin, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	server, kill := serve("first")
	o := &operated{T: t, url: server}
	o.subscribe(endpoint.URL)
	run("publish", "--server", server, "--uri", buildFinished, "--id", "evt_kept", "--data", `{"build":1,"status":"passed"}`)
	expect.MustEqual(t, "the webhook", expect.Receive(t, "OPS-16: a webhook", arrived), "false evt_kept")
	run("backup", backup, "--data", filepath.Join(dir, "first"))
	kill()
	works.Store(true)
	for len(arrived) > 0 {
		<-arrived
	}
	run("restore", backup, "--data", filepath.Join(dir, "second"))
	serve("second")
	expect.Equal(t, "OPS-16: the webhook", expect.Receive(t, "OPS-16: a webhook", arrived), "true evt_kept")
}
