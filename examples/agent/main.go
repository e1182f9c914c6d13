// Command agent shows how a program does something once for each event, even if the program or the server is killed.
//
//	agent -server http://127.0.0.1:8080/mcp -event ci.build_finished -dir state
//
// Its effect is a line in state/effects. A real agent would ask a model, open a ticket or send a message. Events arrive at
// least once, and two rules make the effect happen exactly once:
//
//   - The cursor moves only after the effect is durable, because the package client saves it when the function for events
//     returns nil. If the program is killed before that, the event arrives again.
//   - The effect has the event's id and URI as its key, so a repeated event finds its effect done. Both are needed, because
//     publishers may choose the same id for events of two URIs. Here one write holds the effect and its key. With another
//     service's API you would pass them as the idempotency key.
//
// Any server that speaks MCP Events will do. If the server needs a key, set AGENT_KEY.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/mcp-events/mcpevents/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, log); err != nil {
		log.Error("agent failed", "error", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, log *slog.Logger) error {
	server := flag.String("server", "http://127.0.0.1:8080/mcp", "`URL` of an MCP endpoint")
	event := flag.String("event", "", "`name` of an event type")
	arguments := flag.String("arguments", "{}", "its arguments, a JSON `object`")
	mode := flag.String("mode", "", "webhook, push or poll; by default the best")
	dir := flag.String("dir", "state", "`directory` of what survives")
	listen := flag.String("listen", "", "`address` for webhooks")
	public := flag.String("public", "", "`URL` at which the server reaches that address; by default itself")
	flag.Parse()

	effects, err := open(filepath.Join(*dir, "effects"))
	if err != nil {
		return err
	}
	defer func() { _ = effects.Close() }()

	o := client.Options{Key: os.Getenv("AGENT_KEY"), Agent: "agent/1", Store: client.Dir(filepath.Join(*dir, "cursors")), Log: log}
	if *listen != "" {
		o.Webhooks = &client.Handler{URL: *public, Log: log}
		end, err := o.Webhooks.Listen(*listen)
		if err != nil {
			return err
		}
		defer end()
	}
	c, err := connect(ctx, *server, o)
	if err != nil {
		return err
	}
	defer c.Close()
	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
		Name: *event, Arguments: json.RawMessage(*arguments), Mode: *mode,
		Event: func(_ context.Context, e client.Event) error { return effects.once(e.ID+" "+e.URI, e.Data) },
		Gap: func(context.Context, client.Gap) error {
			log.Warn("events lost") // a real agent would now call a tool to read the current state
			return nil
		},
	})
	if err != nil {
		return err
	}
	<-sub.Done()
	return sub.Err()
}

// connect waits for a server that does not answer yet. Each call of Connect tries for some seconds.
func connect(ctx context.Context, url string, o client.Options) (*client.Client, error) {
	for {
		c, err := client.Connect(ctx, url, o)
		if err == nil || !client.Retryable(err) || ctx.Err() != nil {
			return c, err
		}
		o.Log.Warn("server does not answer", "error", err)
	}
}

// ledger is a file with one line for each effect, and the set of the lines' keys. An agent that runs for years would forget
// keys that are older than the server's event log.
type ledger struct {
	mu   sync.Mutex
	file *os.File
	done map[string]bool
}

// effect is a line.
type effect struct {
	Key  string          `json:"key"`
	Data json.RawMessage `json:"data"`
}

// open reads the effects done so far. It cuts off a last line that is incomplete because the program was killed, whose
// event will arrive again.
func open(path string) (*ledger, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	l := &ledger{file: file, done: map[string]bool{}}
	for line := range bytes.Lines(text[:whole]) {
		var e effect
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, errors.Join(fmt.Errorf("%s has a damaged line: %w", path, err), file.Close())
		}
		l.done[e.Key] = true
	}
	err = file.Truncate(int64(whole))
	if err == nil {
		_, err = file.Seek(int64(whole), io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

// once has an effect, unless it is done, and returns when a kill no longer undoes it.
func (l *ledger) once(key string, data json.RawMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done[key] {
		return nil
	}
	line, err := json.Marshal(effect{Key: key, Data: data})
	if err != nil {
		return err
	}
	at, err := l.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err = l.file.Write(append(line, '\n')); err == nil {
		err = l.file.Sync()
	}
	if err != nil { // half of it must not stay before the next line
		_, seek := l.file.Seek(at, io.SeekStart)
		return errors.Join(err, l.file.Truncate(at), seek)
	}
	l.done[key] = true
	return nil
}

// Close closes the file.
func (l *ledger) Close() error { return l.file.Close() }
