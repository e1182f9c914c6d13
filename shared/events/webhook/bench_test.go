package webhook

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bareReceiver answers every request on a connection with 204 and does as little else as possible, so that the
// benchmark measures the sender.
func bareReceiver(tb testing.TB) string {
	tb.Helper()
	return "http://" + startTCP(tb, func(c net.Conn, _ <-chan struct{}) { answerBare(c) }) + "/hook"
}

func answerBare(c net.Conn) {
	r := bufio.NewReaderSize(c, 16<<10)
	for {
		length := 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
			}
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
			return
		}
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSend measures a delivery of 700 bytes over a kept connection, including the receiver. Use cpu-µs/op,
// because wall-clock time depends on other programs on the machine.
func BenchmarkSend(b *testing.B) {
	for _, workers := range []int{1, 32} {
		b.Run("workers="+strconv.Itoa(workers), func(b *testing.B) {
			s := NewSender(Options{Guard: &Guard{AllowInsecure: true}})
			defer s.Close()
			_, key := NewSecret()
			r := Request{
				URL: bareReceiver(b), ID: "evt_0197", SubscriptionID: "sub_0123456789abcdef0123456789abcdef",
				Keys: [][]byte{key}, Body: []byte(`{"data":"` + strings.Repeat("x", 688) + `"}`),
			}
			if o := s.Send(context.Background(), r); !o.OK() {
				b.Fatal(o.Err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu()
			var wg sync.WaitGroup
			work := make(chan struct{}, workers)
			for range workers {
				wg.Go(func() {
					for range work {
						if o := s.Send(context.Background(), r); !o.OK() {
							b.Error(o.Err)
						}
					}
				})
			}
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

func BenchmarkSign(b *testing.B) {
	_, key := NewSecret()
	body := bytes.Repeat([]byte("x"), 700)
	at := time.Unix(1_700_000_000, 0)
	b.ReportAllocs()
	for b.Loop() {
		Sign([][]byte{key}, "evt_0197", at, body)
	}
}

func BenchmarkHeader(b *testing.B) {
	s := NewSender(Options{})
	_, key := NewSecret()
	r := &Request{ID: "evt_0197", SubscriptionID: "sub_0", Keys: [][]byte{key}, Body: bytes.Repeat([]byte("x"), 700)}
	b.ReportAllocs()
	for b.Loop() {
		s.header(r)
	}
}

func BenchmarkSealing(b *testing.B) {
	private, public, err := GenerateKeyset()
	if err != nil {
		b.Fatal(err)
	}
	sealer, _ := NewSealer(public)
	opener, _ := NewOpener(private)
	_, secret := NewSecret()
	binding := Binding{Workspace: "default", Subscription: "sub_0123456789abcdef0123456789abcdef", Target: "https://example.com/hook"}
	sealed, _ := sealer.Seal(b.Context(), secret, binding)
	b.Run("seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = sealer.Seal(b.Context(), secret, binding)
		}
	})
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = opener.dec.Decrypt(sealed, binding.context())
		}
	})
	b.Run("open again", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = opener.Open(b.Context(), sealed, binding)
		}
	})
}

func BenchmarkCheckURL(b *testing.B) {
	g := &Guard{}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = g.checkURL("https://hooks.example.com/a/b?c=d")
	}
}

// BenchmarkTransport measures the lower bound: it sends the same bytes with net/http only.
func BenchmarkTransport(b *testing.B) {
	t := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 8}
	defer t.CloseIdleConnections()
	url := bareReceiver(b)
	body := bytes.Repeat([]byte("x"), 700)
	b.ReportAllocs()
	before := cpu()
	n := 0
	for b.Loop() {
		n++
		req, _ := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
		resp, err := t.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(n), "cpu-µs/op")
}
