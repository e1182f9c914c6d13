//go:build unix

package awslocal

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
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
	out, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	expect.OK(t, err)
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
	got, err := db.Get(t.Context(), want.Key)
	expect.OK(t, err)
	if got[0] == nil || string(got[0].Value) != "value" {
		t.Errorf("got %v, want %v", got[0], want)
	}
}

func sendAndReceive(t *testing.T, client *sqs.Client) {
	t.Helper()
	q, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(fmt.Sprintf("awslocal-%d", time.Now().UnixNano()))})
	expect.OK(t, err)
	expect.OK(t, expect.ErrOf(client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: q.QueueUrl, MessageBody: aws.String("hello")})))
	got, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: q.QueueUrl, WaitTimeSeconds: 5})
	expect.OK(t, err)
	if len(got.Messages) != 1 || *got.Messages[0].Body != "hello" {
		t.Errorf("got %v", got.Messages)
	}
}
