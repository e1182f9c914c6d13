//go:build unix

package awslocal

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/test/expect"
)

const script = "../../localstack/start.sh"

// The script for people without Docker uses what the tests have installed.
func TestTheStartScriptServesAndEnds(t *testing.T) {
	Start(t, MiniStack) // installs it
	port, err := freePort()
	expect.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, script)
	cmd.Env = append(os.Environ(), "GATEWAY_PORT="+strconv.Itoa(port))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var progress tail
	cmd.Stderr = &progress
	out, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	env := map[string]string{}
	for lines := bufio.NewScanner(out); len(env) < 4 && lines.Scan(); {
		name, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		env[name] = value
	}
	base := env["AWS_ENDPOINT_URL"]
	if base != "http://127.0.0.1:"+strconv.Itoa(port) || env["AWS_REGION"] == "" || env["AWS_ACCESS_KEY_ID"] == "" || env["AWS_SECRET_ACCESS_KEY"] == "" {
		t.Fatalf("printed %v and %s", env, progress.String())
	}
	putAndGet(t, dynamodb.NewFromConfig(Config(base)))
	sendAndReceive(t, sqs.NewFromConfig(Config(base)))

	cancel()
	cmd.Wait() // ends by the signal
	if listens("127.0.0.1:" + strconv.Itoa(port)) {
		t.Error("the emulator outlived the script")
	}
	if strings.Contains(progress.String(), "installing") {
		t.Errorf("it made an installation of its own: %s", progress.String())
	}
}

func TestTheStartScriptPrintsItsEnvironment(t *testing.T) {
	cmd := exec.Command(script, "--env")
	cmd.Env = append(os.Environ(), "GATEWAY_PORT=1234")
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "export AWS_ENDPOINT_URL=http://127.0.0.1:1234\n") {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestTheStartScriptLeavesABusyPortAlone(t *testing.T) {
	port := strings.TrimPrefix(Start(t, MiniStack).MiniStack, "http://127.0.0.1:")
	cmd := exec.Command(script)
	cmd.Env = append(os.Environ(), "GATEWAY_PORT="+port)
	var progress tail
	cmd.Stderr = &progress
	start := time.Now()
	if err := cmd.Run(); err == nil || !strings.Contains(progress.String(), "already") {
		t.Errorf("after %v: %v, %s", time.Since(start), err, progress.String())
	}
}
