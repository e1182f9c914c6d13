//go:build unix

package awslocal

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
	"github.com/mcp-events/mcpevents/test/expect"
)

// envOwner makes the test binary an owner of an emulator that is then killed.
const envOwner = "MCPEVENTS_TEST_AWSLOCAL_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(envOwner) != "" {
		r, err := StartAll(context.Background(), os.Stderr, SQS)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(r.SQS)
		select {}
	}
	os.Exit(Main(m))
}

func TestAKilledOwnerTakesItsEmulatorAlong(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envOwner+"=1")
	out := expect.Value(cmd.StdoutPipe())(t)
	expect.OK(t, cmd.Start())
	line := expect.Value(bufio.NewReader(out).ReadString('\n'))(t)
	addr := strings.TrimPrefix(strings.TrimSpace(line), "http://")
	if !listens(addr) {
		t.Fatalf("nothing listens at %q", addr)
	}
	expect.OK(t, cmd.Process.Signal(syscall.SIGKILL))
	cmd.Wait()
	for deadline := time.Now().Add(20 * time.Second); listens(addr); {
		if time.Now().After(deadline) {
			t.Fatal("the emulator outlived its owner")
		}
		<-time.After(20 * time.Millisecond)
	}
}

func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func putAndGet(t *testing.T, client *dynamodb.Client) {
	t.Helper()
	name := func(table store.Table) string { return fmt.Sprintf("awslocal-%s-%d", table, os.Getpid()) }
	expect.OK(t, CreateTables(t.Context(), client, name))
	db, want := dynamo.New(client, name), store.Item{Key: store.Key{Table: store.Settings, Partition: "a", Sort: "b"}, Value: []byte("value")}
	expect.OK(t, db.Write(t.Context(), store.Put(want)))
	got := expect.Value(db.Get(t.Context(), want.Key))(t)
	if got[0] == nil || string(got[0].Value) != "value" {
		t.Errorf("got %v, want %v", got[0], want)
	}
}

func sendAndReceive(t *testing.T, client *sqs.Client) {
	t.Helper()
	q := expect.Value(client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(fmt.Sprintf("awslocal-%d", time.Now().UnixNano()))}))(t)
	expect.OK(t, expect.ErrOf(client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: q.QueueUrl, MessageBody: aws.String("hello")})))
	got := expect.Value(client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: q.QueueUrl, WaitTimeSeconds: 5}))(t)
	if len(got.Messages) != 1 || *got.Messages[0].Body != "hello" {
		t.Errorf("got %v", got.Messages)
	}
}

const script = "../../localstack/start.sh"

// The script for people without Docker uses what the tests have installed.
func TestTheStartScriptServesAndEnds(t *testing.T) {
	Start(t, MiniStack) // installs it
	port := expect.Value(freePort())(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, script)
	cmd.Env = append(os.Environ(), "GATEWAY_PORT="+strconv.Itoa(port))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var progress tail
	cmd.Stderr = &progress
	out := expect.Value(cmd.StdoutPipe())(t)
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
	expect.True(t, "the emulator ended with the script", !listens("127.0.0.1:"+strconv.Itoa(port)))
	expect.Lacks(t, "the progress", progress.String(), "installing")
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
