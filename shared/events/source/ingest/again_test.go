package ingest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

const renamed = `{"action":"renamed","repository":{"owner":"acme","name":"site"}}`

// letter returns the n-th dead letter and its body, which can be sent back.
func (f *fixture) letter(t *testing.T, n int) (queue.DeadLetter, string) {
	t.Helper()
	if len(f.sent[queue.Dead]) <= n {
		t.Fatalf("%d dead letters", len(f.sent[queue.Dead]))
	}
	letter := expect.Value(queue.ParseDeadLetter(f.sent[queue.Dead][n].Body))(t)
	return letter, string(expect.Value(letter.Content())(t))
}

// unfit returns a fixture with one dead letter, for a request that did not fit the catalog, and the letter's body.
func unfit(t *testing.T) (f *fixture, body string) {
	t.Helper()
	f = newFixture(t)
	f.wants(t, pull("d-1", renamed), 422, `"pointer":"/data/action"`, ingest.Unfit)
	_, body = f.letter(t, 0)
	return f, body
}

// read delivers a message to the inbox.
func (f *fixture) read(t *testing.T, body string) {
	t.Helper()
	failed := expect.Value(f.inbox.Handle(t.Context(), []queue.Message{{ID: "m", Outgoing: queue.Outgoing{Body: []byte(body)}, Sent: f.now}}))(t)
	expect.Len(t, "the failed messages", failed, 0)
}

// mapping returns the first mapping of source number i.
func (f *fixture) mapping(i int) *source.Mapping { return &f.Sources.(sources)[i].Events[0] }

// acceptAll changes the mapping of github so that it accepts any document.
func (f *fixture) acceptAll() {
	f.mapping(0).Data, _ = parseValue(`{"action":"opened"}`)
}

func (f *fixture) wantEvents(t *testing.T, ids ...string) {
	t.Helper()
	var got []string
	for _, e := range f.events(t) {
		got = append(got, e.ID)
	}
	expect.Equal(t, "the events", strings.Join(got, " "), strings.Join(ids, " "))
}

func TestRetriedDeadLetters(t *testing.T) {
	t.Run("SRC-04 given a retried letter, a redelivery is the same event", func(t *testing.T) {
		f, body := unfit(t)
		f.acceptAll()
		f.read(t, body)
		f.wants(t, pull("d-1", renamed), 202, `"d-1"`, ingest.Duplicate)
		f.wantEvents(t, "d-1")
	})
	t.Run("SRC-04 given a redelivery, the retried letter is the same event", func(t *testing.T) {
		f, body := unfit(t)
		f.acceptAll()
		f.wants(t, pull("d-1", renamed), 202, `"d-1"`, ingest.Accepted)
		f.read(t, body)
		f.wantEvents(t, "d-1")
	})
	t.Run("SRC-04 a retried letter without an id gets its id from the original body", func(t *testing.T) {
		f := newFixture(t)
		f.mapping(0).ID, _ = parseValue(`"/body/none"`)
		spaced := strings.Replace(renamed, ":", " : ", 1)
		f.wants(t, pull("d-1", spaced), 422, `"pointer":"/id"`, ingest.Unfit)
		_, body := f.letter(t, 0)
		f.acceptAll()
		f.mapping(0).ID = f.mapping(1).ID // none
		f.read(t, body)
		f.wants(t, pull("d-1", spaced), 202, `sha256_`, ingest.Duplicate)
	})
	t.Run("SRC-04 a retried document that still does not fit becomes a letter again, with its faults", func(t *testing.T) {
		f, body := unfit(t)
		f.read(t, body)
		letter, again := f.letter(t, 1)
		if letter.Queue != queue.Inbox || again != body || strings.Contains(letter.Body, "signature") ||
			!strings.Contains(string(letter.Faults), "/action") || !strings.HasPrefix(letter.Reason, "source github: ") {
			t.Errorf("got %+v", letter)
		}
	})
	t.Run("SRC-04 a retried document that no mapping matches becomes a letter again", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, pull("d-1", renamed), 422, ``, ingest.Unfit)
		f.read(t, `{"id":"e-1","detail-type":"Alarm","source":"aws.cloudwatch","time":"never","detail":{}}`)
		f.mapping(0).Match, f.mapping(3).Match = f.mapping(2).Match, f.mapping(2).Match
		for i := range 2 {
			_, body := f.letter(t, i)
			f.read(t, body)
			letter, again := f.letter(t, 2+i)
			expect.Equal(t, "the body of the letter", again, body)
			expect.Contains(t, "the reason", letter.Reason, ": no mapping matches it any more")
		}
	})
	t.Run("SRC-04 a retried letter of a removed source is refused", func(t *testing.T) {
		f, body := unfit(t)
		f.Sources.(sources)[0].Name = "hub"
		f.read(t, body)
		if letter, again := f.letter(t, 1); again != body || !strings.Contains(letter.Reason, `no longer has a source "github"`) {
			t.Errorf("got %+v", letter)
		}
	})
	t.Run("SRC-04 a request larger than a queue message is compressed and can be retried", func(t *testing.T) {
		f := newFixture(t)
		large := `{"action":"renamed","repository":{"owner":"acme","name":"site"},"text":"` + strings.Repeat("lorem \uFFFE ", 300_000) + `"}`
		f.wants(t, pull("d-1", large), 422, ``, ingest.Unfit)
		letter, body := f.letter(t, 0)
		if len(body) > queue.MaxBody || letter.Truncated || strings.ContainsAny(body, "\uFFFE\uFFFF") {
			t.Fatalf("%d bytes, truncated %v", len(body), letter.Truncated)
		}
		f.acceptAll()
		f.read(t, body)
		f.wantEvents(t, "d-1")
	})
	t.Run("SRC-04 given delivery ids, two deliveries of one body are two letters, and a redelivery adds none", func(t *testing.T) {
		for _, data := range []string{`"/body/state"`, `{"state":"/body/state"}`} { // the mapping does not fit the first, and the catalog not the second
			f := newFixture(t)
			open := f.mapping(1)
			open.ID, _ = parseValue(`"/headers/x-delivery"`)
			open.Data, _ = parseValue(data)
			open.Name = "github.pull_request" // which needs a variable that the mapping lacks
			for _, id := range []string{"d-1", "d-2", "d-1"} {
				r := httptest.NewRequest("POST", "http://127.0.0.1/sources/open/0123456789abcdef0123456789abcdef", strings.NewReader(`{}`))
				r.Header.Set("X-Delivery", id)
				f.wants(t, r, 422, ``, ingest.Unfit)
			}
			expect.Equal(t, "dead letters", len(f.sent[queue.Dead]), 2)
		}
	})
	t.Run("SRC-04 a document with an unusable variable, or without one, is dead-lettered", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, pull("d-0", `{"action":"opened"}`), 422, `"pointer":"/variables/owner"`, ingest.Unfit)
		f.wants(t, pull("d-1", strings.Replace(opened, "acme", strings.Repeat("a", 3000), 1)), 422, `"pointer":"/variables"`, ingest.Unfit)
	})
	t.Run("SRC-04 OPS-04 the log has the reason", func(t *testing.T) {
		f := newFixture(t)
		var log bytes.Buffer
		f.Log = slog.New(slog.NewTextHandler(&log, nil))
		f.wants(t, pull("d-1", renamed), 422, ``, ingest.Unfit)
		expect.Contains(t, "the log", log.String(), `reason="/data/action: must be one of `)
	})
	t.Run("SRC-04 an event larger than its type allows is dead-lettered", func(t *testing.T) {
		f := newFixture(t)
		f.mapping(0).Data, _ = parseValue(`"/body"`)
		f.wants(t, pull("d-1", large), 413, `/data: has 300`, ingest.Unfit)
		_, body := f.letter(t, 0)
		f.acceptAll()
		f.read(t, body)
		f.wantEvents(t, "d-1")
	})
	t.Run("SRC-01 other messages are not mistaken for letters", func(t *testing.T) {
		f := newFixture(t)
		f.read(t, `{"specversion":"1.0","id":"c","source":"x","type":"y","subject":"event://cloudwatch/alarm","retry":"3","document":"7","data":{}}`)
		f.wantEvents(t, "c")
		f.read(t, `{"workspace":"default","retry":{"source":"github","packed":"AAAA"}}`)
		f.read(t, `{"workspace":"default","retry":7}`)
		expect.Equal(t, "dead letters", len(f.sent[queue.Dead]), 2)
	})
}

// AWS-07: a message that is not JSON becomes a dead letter. A panic would repeat with the message, and hold up the others in the inbox.
func TestMalformedMessagesOfTheInbox(t *testing.T) {
	for _, body := range []string{`{"`, `{"retry":"`, `{"retry":1,"`, `{"retry":{}`, `{`, `"`, `[`} {
		t.Run("AWS-07 "+body, func(t *testing.T) {
			f := newFixture(t)
			f.read(t, body)
			letter, content := f.letter(t, 0)
			expect.Equal(t, "the content of the dead letter", content, body)
			expect.Contains(t, "the reason", letter.Reason, "is not valid JSON")
		})
	}
}

func TestEachSourceOfABus(t *testing.T) {
	f := newFixture(t)
	other := f.Sources.(sources)[3]
	other.Name, other.Workspace = "beside", "beside"
	other.Events = append(other.Events[:0:0], other.Events...)
	other.Events[0].ID, _ = parseValue(`"/nothing"`)
	all := append(sources{other}, f.Sources.(sources)...)
	f.inbox.Documents.(*ingest.Bus).Sources = all
	alarm := `{"version":"0","id":"e-1","detail-type":"Alarm","source":"aws.cloudwatch","time":"2026-11-23T08:00:00Z","detail":{"state":"ALARM"}}`
	f.read(t, alarm)
	f.read(t, " "+alarm)
	t.Run("SRC-04 when one source cannot map a message, the other sources still get it", func(t *testing.T) { f.wantEvents(t, "e-1", "e-1") })
	t.Run("SRC-04 OPS-04 the dead letter is in the source's workspace, exists once, and retries only this source", func(t *testing.T) {
		_, body := f.letter(t, 0)
		if len(f.sent[queue.Dead]) != 1 || !strings.HasPrefix(body, `{"workspace":"beside"`) {
			t.Errorf("%d letters, the first is %s", len(f.sent[queue.Dead]), body)
		}
		all[0].Events[0].ID, _ = parseValue(`"/id"`)
		f.read(t, body)
		if last := f.events(t); len(last) != 3 || last[2].Workspace != "beside" {
			t.Errorf("got %+v", last)
		}
	})
}

func TestTheSignatureIsCheckedFirst(t *testing.T) {
	for encoding, body := range map[string]string{"": `{"not JSON`, "gzip": "no gzip", "br": opened, "GZIP": "\x1f\x8b\x08"} {
		t.Run("SRC-02 a forged request, encoded "+encoding, func(t *testing.T) {
			f := newFixture(t)
			r := pull("d-1", body)
			r.Header.Set("Content-Encoding", encoding)
			r.Header.Set("X-Hub-Signature-256", "sha256="+signature("another secret", body))
			f.wants(t, r, 401, `no signature or key matches`, ingest.Unverified)
			expect.Len(t, "the messages", f.sent, 0)
		})
	}
}

// large is opened with a long text.
var large = strings.Replace(opened, "{", `{"text":"`+strings.Repeat("a", 300_000)+`",`, 1)

func TestLargeBodies(t *testing.T) {
	// with returns a fixture that is reading 25 bodies, of each of which the given number of bytes has arrived. The
	// format gives the clients' addresses.
	with := func(t *testing.T, sent int, from string) *fixture {
		f := newFixture(t)
		begun, end := make(chan bool), make(chan bool)
		for i := range 25 {
			go func() {
				r := pull("d-1", opened)
				r.RemoteAddr = fmt.Sprintf(from, i)
				r.ContentLength = 1 << 20
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(large[:sent]), slowBody{begun, end}))
				_, _ = f.answer(t, r)
				end <- true
			}()
			<-begun
		}
		t.Cleanup(func() {
			for range 25 {
				<-end
				<-end
			}
		})
		return f
	}
	t.Run("SRC-05 unverified senders cannot fill the memory", func(t *testing.T) {
		f := with(t, 300_000, "192.0.2.1:%d")
		f.wants(t, pull("d-2", large), 429, `"limit":"largeBodies"`, ingest.Limited)
		f.wants(t, pull("d-3", opened), 202, `"d-3"`, ingest.Accepted)
	})
	t.Run("SRC-05 requests that send nothing do not keep large bodies out", func(t *testing.T) {
		f := with(t, 10, "192.0.2.1:%d")
		f.wants(t, pull("d-2", large), 202, `"d-2"`, ingest.Accepted)
	})
	t.Run("SRC-05 given one client that sends all large bodies, another client's large body is read", func(t *testing.T) {
		f := with(t, 300_000, "203.0.113.1:%d")
		f.wants(t, pull("d-2", large), 202, `"d-2"`, ingest.Accepted)
	})
	t.Run("SRC-05 given slow bodies of many clients, another client's large body is read", func(t *testing.T) {
		f := with(t, 300_000, "203.0.113.%d:1")
		f.wants(t, pull("d-2", large), 429, `"limit":"largeBodies"`, ingest.Limited) // they are not slow yet
		f.now = f.now.Add(time.Second)
		f.wants(t, pull("d-2", large), 202, `"d-2"`, ingest.Accepted)
	})
	t.Run("SRC-05 requests that send slowly do not keep large bodies out", func(t *testing.T) {
		f := newFixture(t)
		for body, want := range map[string]bool{large: true, opened: false} {
			w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			f.mux().ServeHTTP(w, pull("d-1", body))
			switch left := w.left; {
			case w.Code != 202 || want != (len(left) > 1):
				t.Errorf("%d bytes: %d, the deadlines %v", len(body), w.Code, left)
			case want && (slices.Max(left) > 2*time.Second || left[len(left)-1] > 0): // the last call removes the deadline
				t.Errorf("got %v", left)
			}
		}
	})
	t.Run("SRC-05 a slot is free when its request has been answered", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, pull("d-2", large), 202, `"d-2"`, ingest.Accepted)
		for range 30 {
			f.wants(t, pull("d-2", large), 202, `"d-2"`, ingest.Duplicate)
		}
	})
}

// TestLargeBodiesThatArriveSlowly sends large bodies over real connections.
func TestLargeBodiesThatArriveSlowly(t *testing.T) {
	send := func(t *testing.T, addr string, part []byte, pause time.Duration) (status string) {
		c, err := pipes.Dial(t.Context(), addr)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer c.Close()
		answered := make(chan bool)
		defer close(answered)
		go func() {
			_, _ = fmt.Fprintf(c, "POST /sources/github HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Hub-Signature-256: sha256=00\r\nContent-Length: 4000000\r\n\r\n")
			_, _ = c.Write(make([]byte, 300_000))
			for {
				select {
				case <-time.After(pause):
				case <-answered:
					return
				}
				if _, err := c.Write(part); err != nil {
					return
				}
			}
		}()
		answer, _ := io.ReadAll(c)
		return string(answer[:min(12, len(answer))])
	}
	for name, c := range map[string]struct {
		part, pauseMillis int
		want              time.Duration
	}{
		"a body that stops is refused after two seconds":        {1, 1e9, 2 * time.Second},
		"a body that trickles is refused after two seconds":     {1, 100, 2 * time.Second},
		"a body that is not whole is refused after ten seconds": {64 << 10, 1000, 10 * time.Second},
	} {
		t.Run("SRC-05 "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				server := pipes.Serve(t, f.mux())
				began := time.Now()
				status := send(t, server.Listener.Addr().String(), make([]byte, c.part), time.Duration(c.pauseMillis)*time.Millisecond)
				expect.Equal(t, "the status", status, "HTTP/1.1 400")
				expect.Equal(t, "the time", time.Since(began).Truncate(time.Second), c.want)
			})
		})
	}
	t.Run("SRC-05 given 25 slow bodies, another large one is read and the slowest is told to try again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.Now = nil
			server := pipes.Serve(t, f.mux())
			statuses := make(chan string, 25)
			for i := range 25 {
				go func() {
					statuses <- send(t, server.Listener.Addr().String(), make([]byte, 1<<10+i), 10*time.Millisecond)
				}()
			}
			time.Sleep(time.Second)
			if status, body := f.answer(t, pull("d-2", large)); status != 202 {
				t.Errorf("another one got %d %s, want 202", status, body)
			}
			time.Sleep(time.Second) // net/http closes the connection after half of it
			expect.Equal(t, "slow requests that were answered", len(statuses), 1)
			expect.Equal(t, "the answer to the slowest one", <-statuses, "HTTP/1.1 429")
		})
	})
}

// deadlines is a response writer that records how far away each read deadline was when it was set.
type deadlines struct {
	*httptest.ResponseRecorder
	left []time.Duration
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.left = append(d.left, time.Until(at))
	return nil
}

// slowBody is a body that reports when it is being read, and ends with an error on demand.
type slowBody struct{ begun, end chan bool }

func (b slowBody) Read([]byte) (int, error) {
	b.begun <- true
	b.end <- true
	return 0, fault.New(fault.Invalid, "cut")
}

func TestTheKeyIsNotLogged(t *testing.T) {
	f := newFixture(t)
	var log bytes.Buffer
	f.Log = slog.New(slog.NewTextHandler(&log, nil))
	f.down = true
	const key = "0123456789abcdef0123456789abcdef"
	f.wants(t, httptest.NewRequest("POST", "http://127.0.0.1/sources/open/"+key, strings.NewReader(`{}`)), 503, ``, ingest.Unavailable)
	expect.Lacks(t, "SRC-02 the log", log.String(), key)
	expect.Contains(t, "SRC-02 the log", log.String(), "path=/sources/open ")
}

func TestTry(t *testing.T) {
	f := newFixture(t)
	cat := expect.Value(f.Catalogs.Catalog(t.Context(), "default"))(t)
	try := func(s source.Source, raw string) ingest.Trial {
		t.Helper()
		all, err := ingest.Try(t.Context(), cat, s, []byte(raw), f.now, f.Secrets)
		expect.OK(t, err)
		expect.MustLen(t, "the trials", all, 1)
		return all[0]
	}
	github, open, slack := f.Sources.(sources)[0], f.Sources.(sources)[1], f.Sources.(sources)[2]
	headers := func(signed string) string {
		return "X-GitHub-Event: pull_request\nX-GitHub-Delivery: d-1\nX-Hub-Signature-256: sha256=" + signature(sharedSecret, signed) + "\n"
	}
	t.Run("SRC-01 a line break that an editor added at the end of the file is ignored", func(t *testing.T) {
		for _, end := range []string{"", "\n", "\r\n"} {
			if got := try(github, headers(opened)+"\n"+opened+end); got.Signature != "verified" || got.ID != "d-1" || got.Refused() {
				t.Errorf("%q: got %+v", end, got)
			}
		}
		expect.Equal(t, "the signature", try(github, headers(opened+"\n")+"\n"+opened+"\n").Signature, "verified")
		all := expect.Value(ingest.Try(t.Context(), cat, github, []byte("Content-Type: application/x-www-form-urlencoded\n\na=b\n"), f.now, nil))(t)
		expect.Deep(t, "the body without a check of the signature", all[0].Document.(map[string]any)["body"], any(map[string]any{"a": "b"}))
	})
	t.Run("SRC-05 a compressed body", func(t *testing.T) {
		if got := try(github, headers(opened)+"Content-Encoding: gzip\n\n"+zip(opened)); got.Kind != ingest.Accepted || got.Signature != "verified" {
			t.Errorf("got %+v", got)
		}
		if got := try(github, headers(opened)+"Content-Encoding: gzip\n\n"+opened); got.Kind != ingest.Invalid || got.Refused() {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("SRC-02 a signature with a wrong secret is not verified", func(t *testing.T) {
		if got := try(github, headers("other")+"\n"+opened); got.Kind != ingest.Unverified || got.URI == "" || !got.Refused() {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("SRC-02 Slack's URL verification is recognized", func(t *testing.T) {
		expect.Equal(t, "the kind", try(slack, "a: b\n\n"+`{"type":"url_verification","challenge":"abc"}`).Kind, ingest.Verified)
	})
	t.Run("SRC-01 a header is not mistaken for a request line", func(t *testing.T) {
		expect.Equal(t, "the kind", try(github, "User-Agent: curl HTTP/1.1\n"+headers(opened)+"\n"+opened).Kind, ingest.Accepted)
	})
	t.Run("SRC-02 the secret in a path is checked only if the file has a request line", func(t *testing.T) {
		key := expect.Value(f.Secrets(t.Context(), open.Secrets[0]))(t)
		for line, want := range map[string]string{
			"":                              "not checked: the file has no request line",
			"POST /sources/open HTTP/1.1\n": "not verified: ",
			"POST /sources/open/" + key + " HTTP/1.1\n": "verified",
		} {
			if got := try(open, line+"A: b\n\n{}"); !strings.HasPrefix(got.Signature, want) {
				t.Errorf("%q: got %+v, want %s", line, got, want)
			}
		}
	})
	t.Run("SRC-01 input that is not a request is refused", func(t *testing.T) {
		for _, raw := range []string{"", " HTTP/1.1\n\n", "GET  HTTP/1.1\n\n", strings.Repeat("a", publish.MaxBody+100_000)} {
			if all, err := ingest.Try(t.Context(), cat, github, []byte(raw), f.now, nil); err == nil && all[0].Kind == ingest.Accepted {
				t.Errorf("%.20q: got %+v", raw, all)
			}
		}
	})
	expect.OK(t, expect.ErrOf(json.Marshal(try(github, headers(opened)+"\n"+opened))))
}
