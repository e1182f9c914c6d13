package inprocess

import (
	"bufio"
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

func get(ctx context.Context, h http.HandlerFunc) (*http.Response, error) {
	t := &Transport{Handler: h, Log: slog.New(slog.DiscardHandler)}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, URL+"?a=b", strings.NewReader("question"))
	if err != nil {
		return nil, err
	}
	return t.RoundTrip(req)
}

func TestAHandlerGetsWhatAServerWouldGive(t *testing.T) {
	resp := expect.Value(get(t.Context(), func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusAccepted)
		w.WriteHeader(http.StatusTeapot)   // the first holds
		w.Header().Set("X-Late", "unseen") // the header has left
		fmt.Fprint(w, r.Method, " ", r.URL, " ", r.RequestURI, " ", r.Host, " ", string(text), " ", err)
	}))(t)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if want := "POST /mcp?a=b /mcp?a=b localhost question <nil>"; err != nil || string(text) != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
	if resp.StatusCode != http.StatusAccepted || resp.Header.Get("Content-Type") != "text/plain" || resp.Header.Get("X-Late") != "" {
		t.Errorf("status %d, header %v", resp.StatusCode, resp.Header)
	}
}

func TestAHandlerThatWritesNothingAnswersWith200(t *testing.T) {
	resp := expect.Value(get(t.Context(), func(http.ResponseWriter, *http.Request) {}))(t)
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) > 0 || resp.StatusCode != http.StatusOK {
		t.Errorf("status %d with %q, %v", resp.StatusCode, text, err)
	}
}

// The handler may or may not have ended when its caller reads the answer, so the test repeats the request.
func TestAHandlerMayEndBeforeItsAnswerIsLookedFor(t *testing.T) {
	for range 2000 {
		resp := expect.Value(get(t.Context(), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))(t)
		expect.MustEqual(t, "the status code", resp.StatusCode, http.StatusAccepted)
	}
}

func TestAHeaderComesWithAFlushAndLinesOneByOne(t *testing.T) {
	next := make(chan struct{})
	resp := expect.Value(get(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		for i := range 3 {
			<-next
			fmt.Fprintln(w, "line", i)
		}
	}))(t)
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

// A handler cannot run ahead of its reader, because the transport has no buffer.
func TestAHandlerWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		resp := expect.Value(get(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
				written++
			}
		}))(t)
		synctest.Wait()
		expect.Equal(t, "pieces that the handler wrote ahead of its reader", written, 0)
		resp.Body.Close()
		synctest.Wait()
	})
}

func TestTheEndOfTheCallerEndsTheHandler(t *testing.T) {
	gone := errors.New("the caller is gone")
	for name, leave := range map[string]func(cancel context.CancelCauseFunc, resp *http.Response){
		"the context ends":   func(cancel context.CancelCauseFunc, _ *http.Response) { cancel(gone) },
		"the body is closed": func(_ context.CancelCauseFunc, resp *http.Response) { resp.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var ended, refused bool
				resp := expect.Value(get(ctx, func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					ended = true
					_, err := w.Write([]byte("late"))
					refused = err != nil
				}))(t)
				leave(cancel, resp)
				synctest.Wait()
				if !ended || !refused {
					t.Errorf("ended: %v, a late write is refused: %v", ended, refused)
				}
				expect.Error(t, "the rest of the body", expect.ErrOf(io.ReadAll(resp.Body)))
			})
		})
	}
}

func TestACallerDoesNotWaitLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		release := make(chan struct{})
		_, err := get(ctx, func(http.ResponseWriter, *http.Request) { <-release })
		expect.Is(t, "the error", err, context.DeadlineExceeded)
		close(release)
	})
}

func TestAPanicOfTheHandlerIsItsOwn(t *testing.T) {
	if resp, err := get(t.Context(), func(http.ResponseWriter, *http.Request) { panic("before") }); err == nil {
		t.Errorf("status %d of a handler that panicked", resp.StatusCode)
	}
	resp := expect.Value(get(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "half")
		panic(http.ErrAbortHandler)
	}))(t)
	text, err := io.ReadAll(resp.Body)
	expect.Equal(t, "the text", string(text), "half")
	expect.Is(t, "the error", err, errAborted)
}

func TestWaitIsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		tr := &Transport{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), Log: slog.Default()}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req := expect.Value(http.NewRequestWithContext(ctx, http.MethodGet, URL, nil))(t)
		if _, err := tr.RoundTrip(req); err == nil {
			t.Fatal("it answered")
		}
		expect.Error(t, "Wait while a handler is running", tr.Wait(ctx))
		close(release)
		expect.OK(t, tr.Wait(t.Context()))
	})
}
