package bench

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// This file implements the part of HTTP/1.1 that the driver and the receiver need. net/http would use a third of the measured CPU time,
// because it wakes two goroutines for each request on both sides.

// message is a request or a response. It is valid until the next message is read.
type message struct {
	head    []byte // the first line and the headers, a line each
	body    []byte
	closing bool // the connection ends with this message

	length  int
	chunked bool
}

const maxHTTPBody = 4 << 20

func (m *message) read(r *bufio.Reader) error {
	*m = message{head: m.head[:0], body: m.body[:0]}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			break
		}
		if len(m.head) > 0 {
			if err := m.readFraming(line); err != nil {
				return err
			}
		}
		m.head = append(m.head, line...)
	}
	if len(m.head) == 0 {
		return fault.New(fault.Invalid, "a message has no first line")
	}
	return m.readBody(r)
}

// readFraming reads a header that says where the message ends, or whether the connection stays open. It ignores all other headers.
func (m *message) readFraming(line []byte) (err error) {
	switch value, name := header(line); {
	case is(name, "content-length"):
		m.length, err = strconv.Atoi(string(value))
		if err != nil || m.length < 0 || m.length > maxHTTPBody {
			return fault.New(fault.Invalid, "the content length %.40q is not allowed (0 to %d)", value, maxHTTPBody)
		}
	case is(name, "transfer-encoding"):
		m.chunked = is(value, "chunked")
	case is(name, "connection"):
		m.closing = is(value, "close")
	}
	return nil
}

func header(line []byte) (value, name []byte) {
	name, value, _ = bytes.Cut(line, []byte(":"))
	return bytes.TrimSpace(value), name
}

func is(name []byte, want string) bool {
	return len(name) == len(want) && bytes.EqualFold(name, []byte(want))
}

func (m *message) start() []byte {
	line, _, _ := bytes.Cut(m.head, []byte("\n"))
	return bytes.TrimRight(line, "\r")
}

// header returns the value of a header, or nil.
func (m *message) header(name string) []byte {
	_, rest, _ := bytes.Cut(m.head, []byte("\n"))
	for line := range bytes.Lines(rest) {
		if value, n := header(line); is(n, name) {
			return value
		}
	}
	return nil
}

func (m *message) readBody(r *bufio.Reader) error {
	if m.chunked {
		b, err := io.ReadAll(io.LimitReader(httputil.NewChunkedReader(r), maxHTTPBody))
		if err != nil {
			return err
		}
		m.body = append(m.body, b...)
		for { // read the trailer
			line, err := r.ReadSlice('\n')
			if err != nil || len(bytes.TrimRight(line, "\r\n")) == 0 {
				return err
			}
		}
	}
	if cap(m.body) < m.length {
		m.body = make([]byte, m.length)
	}
	m.body = m.body[:m.length]
	_, err := io.ReadFull(r, m.body)
	return err
}

func (m *message) status() int {
	_, rest, _ := bytes.Cut(m.start(), []byte(" "))
	code, _, _ := bytes.Cut(rest, []byte(" "))
	n, _ := strconv.Atoi(string(code))
	return n
}

// poster sends POST requests over one connection. The method post returns the body of the response, which is valid until the next call.
// The parameter head has the header lines, each with CRLF at its end.
type poster interface {
	post(target *url.URL, head, body []byte) ([]byte, error)
	close()
}

func newPoster(client string) poster {
	if client == ClientStd {
		return stdPoster{&http.Client{Timeout: callTimeout, Transport: &http.Transport{MaxConnsPerHost: 1}}}
	}
	return &caller{}
}

type stdPoster struct{ *http.Client }

func (p stdPoster) post(target *url.URL, head, body []byte) ([]byte, error) {
	req, err := http.NewRequest(http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "post to %s", target.Host)
	}
	for line := range bytes.Lines(head) {
		value, name := header(line)
		req.Header.Set(string(name), string(value))
	}
	resp, err := p.Do(req)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "post to %s", target.Host)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxHTTPBody))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the answer of %s", target.Host)
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 300 {
		return nil, fault.New(fault.Unavailable, "%s answered %s: %.300s", target.Host, resp.Status, answer)
	}
	return answer, nil
}

func (p stdPoster) close() { p.CloseIdleConnections() }

// caller is a poster that uses the HTTP/1.1 code of this file.
type caller struct {
	conn   net.Conn
	reader *bufio.Reader
	answer message
	out    []byte
	to     string // the address to which conn is connected
}

const callTimeout = 30 * time.Second

func (c *caller) post(target *url.URL, head, body []byte) ([]byte, error) {
	c.out = append(c.out[:0], "POST "...)
	c.out = append(c.out, target.RequestURI()...)
	c.out = append(c.out, " HTTP/1.1\r\nHost: "...)
	c.out = append(c.out, target.Host...)
	c.out = append(c.out, "\r\nContent-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(len(body)), 10)
	c.out = append(c.out, "\r\n"...)
	c.out = append(c.out, head...)
	c.out = append(c.out, "\r\n"...)
	c.out = append(c.out, body...)
	for again := c.conn != nil; ; again = false {
		err := c.exchange(target)
		if err == nil {
			break
		}
		c.close()
		if !again { // only an attempt on an old connection is repeated, because the server may have closed it
			return nil, fault.Wrap(fault.Unavailable, err, "post to %s", target.Host)
		}
	}
	if c.answer.closing {
		c.close()
	}
	if code := c.answer.status(); code < 200 || code >= 300 {
		return nil, fault.New(fault.Unavailable, "%s answered %s: %.300s", target.Host, c.answer.start(), c.answer.body)
	}
	return c.answer.body, nil
}

func (c *caller) exchange(target *url.URL) (err error) {
	if c.conn == nil || c.to != target.Host {
		c.close()
		if c.conn, err = dial(target); err != nil {
			return err
		}
		c.to, c.reader = target.Host, bufio.NewReaderSize(c.conn, 4096)
	}
	if err := c.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	return c.answer.read(c.reader)
}

func dial(target *url.URL) (net.Conn, error) {
	d := &net.Dialer{Timeout: callTimeout}
	if target.Scheme == "https" {
		return tls.DialWithDialer(d, "tcp", withPort(target, "443"), &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	return d.Dial("tcp", withPort(target, "80"))
}

func withPort(target *url.URL, standard string) string {
	if target.Port() != "" {
		return target.Host
	}
	return net.JoinHostPort(target.Hostname(), standard)
}

func (c *caller) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}
