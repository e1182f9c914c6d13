package tools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxLine bounds a line of the client's in bytes.
const maxLine = 4 << 20

// lastWithBatches is the last revision in which a line may be a batch.
const lastWithBatches = "2025-03-26"

// stdio is a client at standard input and output: a message a line. A line that is no message is answered with an error
// and passed over, for the session would end with it otherwise.
type stdio struct {
	*output
	in      *bufio.Reader
	rest    []byte // of the line that is being read
	version string // what the client asked for in initialize
}

func newStdio(in io.Reader, out io.Writer) *stdio {
	return &stdio{output: newOutput(out), in: bufio.NewReaderSize(in, 64<<10)}
}

// Read implements [io.Reader]. It reads lines that are messages, but none while the client does not read the answers.
func (s *stdio) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if err := s.read(context.Background(), maxUnread); err != nil {
			return 0, err
		}
		line, err := s.line()
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

// line reads up to the end of a line. One that is too long is read and thrown away.
func (s *stdio) line() (line []byte, err error) {
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

// check says what is wrong with a line.
func (s *stdio) check(line []byte) *jsonrpc.Error {
	elements, batch, refused := jsonrpc.Split(line)
	if refused != nil {
		return refused
	}
	if batch && s.version != lastWithBatches {
		return &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "a line is one message: there are no batches after revision " + lastWithBatches}
	}
	for _, element := range elements {
		message, refused := jsonrpc.Decode(element)
		if refused != nil {
			return refused
		}
		if _, err := sdk.DecodeMessage(element); err != nil { // the session reads it by this, and would end
			return &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: "this is no message of JSON-RPC 2.0: " + err.Error()}
		}
		if message.Method == "initialize" {
			var params struct{ ProtocolVersion string }
			_ = json.Unmarshal(message.Params, &params)
			s.version = params.ProtocolVersion
		}
	}
	return nil
}

// refuse answers what cannot be handed on, as the endpoint does: without an id, for no one can rely on what it is.
func (s *stdio) refuse(e *jsonrpc.Error) {
	_, _ = s.Write(append(jsonrpc.AppendError(nil, nil, e), '\n'))
}

// notify sends a notification that the SDK has no method for.
func (s *stdio) notify(method string, params any) error {
	b, err := json.Marshal(params)
	if err == nil {
		_, err = s.Write(append(jsonrpc.AppendNotification(nil, method, b), '\n'))
	}
	return err
}

// Close implements [io.Closer]; the streams outlive the session.
func (s *stdio) Close() error { return nil }
