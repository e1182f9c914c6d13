package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// exchange is a request to a process, with the messages that answer it. A GET stream is also an exchange, but has no request. The
// exchange is the body of the HTTP response: a stream with one event for each message. The queue of messages is bounded, see
// [process.push].
type exchange struct {
	p   *process
	ctx context.Context
	// The fields id and method are empty for a GET stream.
	id     json.RawMessage
	method string
	// token is the caller's progress token, and sent is the unique token that the process gets instead.
	token, sent json.RawMessage
	asksLog     bool // the request asks for log messages
	number      int  // how many requests the process had received with this one, so the newest request has the highest number

	wake chan struct{} // receives after a change of the following fields, which the lock of the process guards
	// queue has the messages that were not read yet. size is their total length in bytes, plus messageCost for each message.
	queue    [][]byte
	size     int
	answered bool  // the response is in the queue
	err      error // why no further messages arrive
	closed   bool

	rest []byte // the part of an event that was not read yet
}

// errTooSlow is the error of a request whose messages arrive faster than they are read, so that the queue is full.
var errTooSlow = errors.New("stdio: the messages of the request are not read fast enough")

// Read implements [io.Reader]. Only one goroutine may read.
func (x *exchange) Read(b []byte) (int, error) {
	for len(x.rest) == 0 {
		message, err := x.next()
		if err != nil {
			return 0, err
		}
		x.rest = sse.Append(nil, sse.Event{Data: message})
	}
	n := copy(b, x.rest)
	x.rest = x.rest[n:]
	return n, nil
}

// next waits for the next message. It returns io.EOF after the response.
func (x *exchange) next() ([]byte, error) {
	for {
		x.p.mu.Lock()
		if len(x.queue) > 0 {
			message := x.queue[0]
			x.queue = x.queue[1:]
			x.size -= len(message) + messageCost
			x.p.queued -= len(message) + messageCost
			x.p.mu.Unlock()
			return message, nil
		}
		err := x.err
		x.p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-x.wake:
		case <-x.ctx.Done():
			return nil, context.Cause(x.ctx)
		}
	}
}

// end records that no further messages arrive. The reason err is io.EOF after the response. The caller holds the lock of the process.
func (x *exchange) end(err error) {
	if x.err == nil {
		x.err = err
	}
	x.signal()
}

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Close implements [io.Closer]. It cancels a request that has no response yet.
func (x *exchange) Close() error {
	x.p.close(x)
	return nil
}

// await waits for the response to the request and skips the messages before it. It is for requests that this package itself makes, for
// example initialize.
func (x *exchange) await() (json.RawMessage, error) {
	for {
		message, err := x.next()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil || methodOf(message) == "" {
			return message, err
		}
	}
}

// write writes messages to the process's standard input. A process that does not read holds up only the callers that send to it.
func (p *process) write(in *os.File) {
	for {
		select {
		case message := <-p.out:
			if _, err := in.Write(append(oneLine(message), '\n')); err != nil {
				p.fail("it closed its standard input")
				return
			}
		case <-p.stopping.Done():
			return
		}
	}
}

func (p *process) send(ctx context.Context, message []byte) error {
	select {
	case p.out <- message:
		return nil
	case <-p.stopping.Done():
		return io.ErrClosedPipe
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// maxReplies limits this package's own messages that wait until a process reads them.
const maxReplies = 64

// reply sends one of this package's own messages to the process without waiting until the process reads it. The caller holds the lock.
func (p *process) reply(message []byte) {
	if p.replies >= maxReplies {
		return
	}
	p.replies++
	go func() {
		_ = p.send(context.Background(), message)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.replies--
	}()
}

func (p *process) post(req *http.Request, id json.RawMessage, method string, body []byte) (*http.Response, error) {
	ctx := req.Context()
	if id == nil || method == "" {
		if method == "" && !p.recordAnswer(id) {
			return respond(req, http.StatusAccepted, nil), nil
		}
		if err := p.send(ctx, body); err != nil {
			return nil, err
		}
		return respond(req, http.StatusAccepted, nil), nil
	}
	x, err := p.request(ctx, id, method, body)
	if err != nil {
		return nil, err
	}
	return stream(req, x), nil
}

func (p *process) request(ctx context.Context, id json.RawMessage, method string, body []byte) (*exchange, error) {
	x := &exchange{p: p, ctx: ctx, id: id, method: method, wake: make(chan struct{}, 1)}
	body = x.replaceToken(body)
	if err := p.open(x, jsonrpc.Member(body, "params")); err != nil {
		return nil, err
	}
	if err := p.send(ctx, body); err != nil {
		p.close(x)
		return nil, err
	}
	return x, nil
}

// readLine reads a line. If the line is longer than limit bytes, whole is false, and line has only its beginning and end. A line of more
// than maxLine bytes is an error.
func readLine(r *bufio.Reader, limit int) (line []byte, whole bool, err error) {
	const ends = 4 << 10
	whole = true
	for length := 0; ; {
		part, err := r.ReadSlice('\n')
		if length += len(part); length > maxLine {
			return nil, false, errors.New("it wrote an endless line")
		}
		if line = append(line, part...); length > limit && len(line) > 4*ends {
			whole = false
			line = append(line[:ends:ends], line[len(line)-ends:]...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), whole, err
		}
	}
}

func (p *process) read(out io.Reader) {
	r := bufio.NewReaderSize(out, 64<<10)
	for {
		line, whole, err := readLine(r, maxMessage)
		switch {
		case !whole && line != nil:
			p.refuseLong(line)
		case len(bytes.TrimSpace(line)) > 0:
			p.route(oneLine(line))
		}
		if err == nil {
			continue
		}
		why := "it closed its standard output"
		if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
			why = err.Error()
		}
		select {
		case <-p.stopping.Done():
		case <-time.After(drainTime): // if the whole process is exiting, its exit status explains more than the end of its output
			p.fail(why)
		}
		_, _ = io.Copy(io.Discard, r)
		return
	}
}

// readErrors logs the process's standard error. It hides the command's secrets, because some programs write their settings to standard
// error.
func (p *process) readErrors(errs io.Reader, hide *strings.Replacer) {
	r, limit := bufio.NewReaderSize(errs, 4<<10), rate.NewLimiter(stderrRate, stderrBurst)
	skipped := 0
	for begins := true; ; {
		line, err := r.ReadSlice('\n')
		switch {
		case !begins || len(bytes.TrimSpace(line)) == 0:
		case limit.Allow():
			text := hide.Replace(string(line))
			text = strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), stderrLine)], "?"))
			p.log.Info("backend wrote", "stderr", text, "skipped", skipped)
			skipped = 0
		default:
			skipped++
		}
		begins = err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
