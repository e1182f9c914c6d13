package inprocess

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func post(ctx context.Context, t *Transport) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, URL+"?a=b", strings.NewReader("question"))
	if err != nil {
		return nil, err
	}
	return t.RoundTrip(req)
}

func serve(t *testing.T, h http.HandlerFunc) *Transport {
	tr := New(h, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = tr.Shutdown(context.Background()) })
	return tr
}

func TestAHandlerGetsWhatAServerWouldGive(t *testing.T) {
	resp := expect.Value(post(t.Context(), serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, r.Method, " ", r.URL, " ", r.RequestURI, " ", r.Host, " ", r.RemoteAddr, " ", string(text), " ", err)
	})))(t)
	defer resp.Body.Close()
	text := expect.Value(io.ReadAll(resp.Body))(t)
	expect.Equal(t, "the request", string(text), "POST /mcp?a=b /mcp?a=b localhost 127.0.0.1:0 question <nil>")
	expect.Equal(t, "the status", resp.StatusCode, http.StatusAccepted)
}

func TestAHeaderComesWithAFlushAndLinesOneByOne(t *testing.T) {
	next := make(chan struct{})
	resp := expect.Value(post(t.Context(), serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		for i := range 3 {
			<-next
			fmt.Fprintln(w, "line", i)
			w.(http.Flusher).Flush()
		}
	})))(t)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for i := range 3 {
		next <- struct{}{}
		if !lines.Scan() || lines.Text() != fmt.Sprint("line ", i) {
			t.Fatalf("line %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the last line: %q, %v", lines.Text(), lines.Err())
	}
}

func TestTheEndOfTheCallerEndsTheHandler(t *testing.T) {
	for name, leave := range map[string]func(cancel context.CancelFunc, resp *http.Response){
		"the context ends":   func(cancel context.CancelFunc, _ *http.Response) { cancel() },
		"the body is closed": func(_ context.CancelFunc, resp *http.Response) { resp.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := false
				resp := expect.Value(post(ctx, serve(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					ended = true
				})))(t)
				leave(cancel, resp)
				synctest.Wait()
				expect.True(t, "the handler has ended", ended)
				expect.Error(t, "the rest of the body", expect.ErrOf(io.ReadAll(resp.Body)))
			})
		})
	}
}

func TestAPanicOfTheHandlerIsItsOwn(t *testing.T) {
	var log bytes.Buffer
	tr := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("before") }), slog.New(slog.NewTextHandler(&log, nil)))
	if resp, err := post(t.Context(), tr); err == nil {
		t.Errorf("status %d of a handler that panicked", resp.StatusCode)
	}
	expect.OK(t, tr.Shutdown(t.Context()))
	expect.Contains(t, "the log", log.String(), `msg="upstream panicked" panic=before`)
}

func TestAShutdownWaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		tr := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expect.Is(t, "a caller whose context ends", expect.ErrOf(post(ctx, tr)), context.DeadlineExceeded)
		expect.Error(t, "a shutdown while a handler is running", tr.Shutdown(ctx))
		close(release)
		expect.OK(t, tr.Shutdown(t.Context()))
		if _, err := post(t.Context(), tr); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v after the shutdown", err)
		}
	})
}
