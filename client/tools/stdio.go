package tools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxLine limits the length of a line from the client, in bytes.
const maxLine = 4 << 20

// lastWithBatches is the last revision of MCP in which a line may be a JSON-RPC batch.
const lastWithBatches = "2025-03-26"

// stdio exchanges messages with a client over standard input and output, one message per line. It answers an invalid line with an error
// and skips the line. Otherwise the session of the MCP SDK would end.
type stdio struct {
	*output
	in      *bufio.Reader
	rest    []byte // the part of the current line that Read has not returned yet
	version string // the revision of MCP that the client sent in initialize
}

func newStdio(in io.Reader, out io.Writer) *stdio {
	return &stdio{output: newOutput(out), in: bufio.NewReaderSize(in, 64<<10)}
}

// Read implements [io.Reader] for the session of the MCP SDK. It returns only valid lines. It waits while the client has more than
// maxUnread bytes of our messages to read.
func (s *stdio) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if err := s.waitUntilRead(context.Background(), maxUnread); err != nil {
			return 0, err
		}
		line, err := s.readLine()
		if refused := (*jsonrpc.Error)(nil); errors.As(err, &refused) {
			s.refuse(refused)
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if refused := s.check(line); refused != nil {
				s.refuse(refused)
			} else {
				s.rest = append(line, '\n')
				break
			}
		}
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// readLine returns the next line of the input. It skips a line that is longer than [maxLine] bytes, and returns an error for it.
func (s *stdio) readLine() (line []byte, err error) {
	size := 0
	for {
		part, err := s.in.ReadSlice('\n')
		if size += len(part); size <= maxLine {
			line = append(line, part...)
		} else {
			line = nil
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if size > maxLine {
			return nil, &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: fmt.Sprintf("the line has %d bytes (allowed: %d)", size, maxLine)}
		}
		return line, err
	}
}

// check returns an error for a line that the session of the MCP SDK cannot decode.
func (s *stdio) check(line []byte) *jsonrpc.Error {
	elements, batch, refused := jsonrpc.Split(line)
	if refused != nil {
		return refused
	}
	if batch && s.version != lastWithBatches {
		return &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "a line must be one message: batches ended with revision " + lastWithBatches}
	}
	for _, element := range elements {
		message, refused := jsonrpc.Decode(element)
		if refused != nil {
			return refused
		}
		if _, err := sdk.DecodeMessage(element); err != nil { // the session would decode the line in the same way, and end
			return &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "not a JSON-RPC 2.0 message: " + err.Error()}
		}
		if message.Method == "initialize" {
			var params struct{ ProtocolVersion string }
			_ = json.Unmarshal(message.Params, &params)
			s.version = params.ProtocolVersion
		}
	}
	return nil
}

// refuse answers an invalid line in the same way as the MCP endpoint of mcpevents serve. The answer has no id, because the id in an
// invalid message is unreliable.
func (s *stdio) refuse(e *jsonrpc.Error) {
	_, _ = s.Write(append(jsonrpc.AppendError(nil, nil, e), '\n'))
}

// notify sends a notification for which the MCP SDK has no method.
func (s *stdio) notify(method string, params any) error {
	b, err := json.Marshal(params)
	if err == nil {
		_, err = s.Write(append(jsonrpc.AppendNotification(nil, method, b), '\n'))
	}
	return err
}

// Close does nothing. Standard input and output stay open, because they outlive the session.
func (s *stdio) Close() error { return nil }

const maxInFlight = 64

// bounded is a transport that limits the number of requests in flight to maxInFlight. A connection refuses further requests, but still
// accepts notifications and responses, because these may end a request.
type bounded struct{ mcp.Transport }

func (b bounded) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := b.Transport.Connect(ctx)
	return &connection{Connection: c, inFlight: map[sdk.ID]struct{}{}}, err
}

type connection struct {
	mcp.Connection

	mu       sync.Mutex
	inFlight map[sdk.ID]struct{}
}

func (c *connection) Read(ctx context.Context) (sdk.Message, error) {
	for {
		m, err := c.Connection.Read(ctx)
		r, ok := m.(*sdk.Request)
		if err != nil || !ok || !r.IsCall() || c.begin(r.ID) {
			return m, err
		}
		// Use 429 as the code, because the MCP endpoint of mcpevents serve uses it when a limit is reached.
		refused := &sdk.Error{Code: http.StatusTooManyRequests, Message: fmt.Sprintf("%d requests are in flight (allowed: %d): wait for an answer first", maxInFlight, maxInFlight)}
		if err = c.Connection.Write(ctx, &sdk.Response{ID: r.ID, Error: refused}); err != nil {
			return nil, err
		}
	}
}

// begin counts a request as in flight. It returns false if too many requests are in flight. It accepts an id that is already in flight,
// because the session of the MCP SDK ignores a second request with the same id.
func (c *connection) begin(id sdk.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.inFlight[id]; !again && len(c.inFlight) >= maxInFlight {
		return false
	}
	c.inFlight[id] = struct{}{}
	return true
}

func (c *connection) Write(ctx context.Context, m sdk.Message) error {
	if r, ok := m.(*sdk.Response); ok {
		c.mu.Lock()
		delete(c.inFlight, r.ID)
		c.mu.Unlock()
	}
	return c.Connection.Write(ctx, m)
}

const (
	// maxUnread limits the bytes of our messages that the client has not read. While the client has more to read, the server reads no
	// request.
	maxUnread = 4 << 20
	// endTimeout is how long a client that has closed our standard input may take to read our remaining messages.
	endTimeout = 2 * time.Second
)

// output writes messages to a client that may stop reading. It buffers the messages, so that no tool has to wait for the client.
type output struct {
	to io.Writer

	mu      sync.Mutex
	changed *sync.Cond // signals a change of the fields below
	waiting []byte
	unread  int   // bytes that are waiting or being written
	err     error // why the output has ended
}

func newOutput(to io.Writer) *output {
	o := &output{to: to}
	o.changed = sync.NewCond(&o.mu)
	go o.run()
	return o
}

// Write implements [io.Writer]. It does not wait for the client to read the bytes.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	o.waiting, o.unread = append(o.waiting, p...), o.unread+len(p)
	o.changed.Broadcast()
	return len(p), nil
}

// run writes the buffered bytes until end is called or a write fails.
func (o *output) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil {
		if len(o.waiting) == 0 {
			o.changed.Wait()
			continue
		}
		p := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		_, err := o.to.Write(p)
		o.mu.Lock()
		o.unread -= len(p)
		if o.err == nil {
			o.err = err
		}
		o.changed.Broadcast()
	}
}

// waitUntilRead blocks while the client has more than limit bytes of our messages to read. It returns an error if the output or ctx ends
// first.
func (o *output) waitUntilRead(ctx context.Context, limit int) error {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.changed.Broadcast()
	})()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.unread > limit && o.err == nil && ctx.Err() == nil {
		o.changed.Wait()
	}
	if o.err != nil {
		return o.err
	}
	return ctx.Err()
}

// end waits up to endTimeout for the client to read the remaining messages, and then ends the output. If the client still does not read,
// the goroutine of run stays blocked in its write until the process exits.
func (o *output) end() {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	_ = o.waitUntilRead(ctx, 0)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = io.ErrClosedPipe
	}
	o.changed.Broadcast()
}
