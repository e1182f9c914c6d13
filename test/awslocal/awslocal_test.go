//go:build unix

package awslocal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

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

func TestASecondStartUsesTheSameServer(t *testing.T) {
	first, second := Start(t, MiniStack), Start(t, MiniStack)
	if first.MiniStack != second.MiniStack {
		t.Errorf("second start gave %s, want %s", second.MiniStack, first.MiniStack)
	}
}

func TestAnEndpointOfTheEnvironmentIsUsed(t *testing.T) {
	t.Setenv(EnvSQS, "http://127.0.0.1:1")
	r, err := StartAll(t.Context(), io.Discard, SQS)
	expect.OK(t, err)
	defer r.Close()
	if r.SQS != "http://127.0.0.1:1" {
		t.Errorf("got %s", r.SQS)
	}
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

func TestInstallationsAtOnceDoTheWorkOnce(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	var built atomic.Int32
	k := kinds[MiniStack]
	k.build = func(_ context.Context, dir string) error {
		built.Add(1)
		return os.WriteFile(filepath.Join(dir, "done"), nil, 0o644)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := install(t.Context(), io.Discard, k)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := built.Load(); got != 1 {
		t.Errorf("built %d times, want once", got)
	}
}

func TestAFailedInstallationLeavesNothingBehind(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	k := kinds[MiniStack]
	broken := errors.New("registry is down")
	k.build = func(context.Context, string) error { return broken }
	if _, err := install(t.Context(), io.Discard, k); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*", "*ministack-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAddressIsFoundAcrossWrites(t *testing.T) {
	out := &tail{line: make(chan string, 1)}
	for _, part := range []string{"noise\nliste", "ning 127.0.0.1:12", "34\nmore\nlistening again\n"} {
		expect.OK(t, expect.ErrOf(out.Write([]byte(part))))
	}
	if got := <-out.line; got != "127.0.0.1:1234" {
		t.Errorf("got %q", got)
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

func createTable(t testing.TB, client *dynamodb.Client) string {
	t.Helper()
	name := fmt.Sprintf("awslocal-%d", time.Now().UnixNano())
	_, err := client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:            &name,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}},
	})
	expect.OK(t, err)
	return name
}

func put(t testing.TB, client *dynamodb.Client, table, value string) {
	t.Helper()
	_, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: "a"},
		"d":  &types.AttributeValueMemberS{Value: value},
	}})
	expect.OK(t, err)
}

func putAndGet(t *testing.T, client *dynamodb.Client) {
	t.Helper()
	table := createTable(t, client)
	put(t, client, table, "value")
	got, err := client.GetItem(t.Context(), &dynamodb.GetItemInput{
		TableName: &table, ConsistentRead: aws.Bool(true),
		Key: map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: "a"}},
	})
	expect.OK(t, err)
	if d, ok := got.Item["d"].(*types.AttributeValueMemberS); !ok || d.Value != "value" {
		t.Errorf("got %v", got.Item)
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
