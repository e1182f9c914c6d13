package webhook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// childEndpoint names the variable that tells a child process the endpoint.
const childEndpoint = "WEBHOOK_TEST_ENDPOINT"

// inChild runs the same test in a child process, whose limit on open files can be lowered, and returns its output.
func inChild(t *testing.T, endpoint string) []string {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), childEndpoint+"="+endpoint)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if said, ok := strings.CutPrefix(strings.TrimSpace(line), "says: "); ok {
			lines = append(lines, said)
		}
	}
	return lines
}

func say(format string, args ...any) { fmt.Printf("\nsays: "+format+"\n", args...) }

// TestSend_OutOfDescriptors checks that a process without free descriptors does not blame the endpoint, whether it
// fails to open the name server's socket or the endpoint's. Afterwards it must deliver again.
func TestSend_OutOfDescriptors(t *testing.T) {
	if endpoint := os.Getenv(childEndpoint); endpoint != "" {
		outOfDescriptors(t, endpoint)
		return
	}
	srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	got := inChild(t, srv.URL)
	want := []string{
		"an address: internal", "a name: internal", "a name, the system's resolver: internal",
		"a challenge: false", "afterwards:",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func outOfDescriptors(t *testing.T, endpoint string) {
	names := newNameServer(t, localhost)
	port := strconv.Itoa(int(portOf(t, endpoint)))
	s := open(t, Options{Guard: &Guard{AllowInsecure: true, Resolver: names.resolver()}})
	system := open(t, Options{Guard: &Guard{AllowInsecure: true}})
	if o := open(t, Options{}).Send(t.Context(), request(endpoint)); !o.OK() { // opens the descriptors that the runtime needs
		t.Fatal(o.Err)
	}
	lowerLimit(t, uint64(countDescriptors(t)+20))
	var files []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	say("an address: %s", s.Send(t.Context(), request(endpoint)).Category)
	say("a name: %s", s.Send(t.Context(), request("http://hooks.example.com:"+port)).Category)
	say("a name, the system's resolver: %s", system.Send(t.Context(), request("http://hooks.example.com:"+port)).Category)
	say("a challenge: %t", strings.Contains(s.Verify(t.Context(), endpoint, "sub_1", nil).Error(), string(ConnectionRefused)))
	for _, f := range files {
		_ = f.Close()
	}
	say("afterwards: %s", s.Send(t.Context(), request("http://hooks.example.com:"+port)).Category)
}

func lowerLimit(t *testing.T, n uint64) {
	t.Helper()
	expect.OK(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}))
}

// TestSend_HangingOriginsUnderALowLimit sends to two hundred origins that hang, with 128 descriptors and the sender's
// default options.
func TestSend_HangingOriginsUnderALowLimit(t *testing.T) {
	if port := os.Getenv(childEndpoint); port != "" {
		hangingOriginsUnderALowLimit(t, port)
		return
	}
	var open, most atomic.Int32
	_, port, _ := net.SplitHostPort(startTCP(t, func(c net.Conn, done <-chan struct{}) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			continue
		}
		r := bufio.NewReader(c)
		for {
			head, err := readRequest(r)
			if err != nil {
				return
			}
			if strings.Contains(strings.Join(head, "\n"), "Host: hang") {
				_, _ = io.Copy(io.Discard, r)
				return
			}
			if _, err := io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
				return
			}
		}
	}))
	got := strings.Join(inChild(t, port), "; ")
	expect.Equal(t, "WHK-17", got, "hanging: timeouts true, others 0; healthy:")
	if n := most.Load(); n < 1 || n > 40 {
		t.Errorf("WHK-17 %d concurrent connections", n)
	}
}

func hangingOriginsUnderALowLimit(t *testing.T, port string) {
	lowerLimit(t, 128)
	s := open(t, Options{Guard: here(t)})
	var timeouts, internal, others atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			r := request(fmt.Sprintf("http://hang%d.example.com:%s/", i, port))
			r.Timeout = time.Second
			switch o := s.Send(t.Context(), r); o.Category {
			case Timeout:
				timeouts.Add(1)
			case Internal:
				internal.Add(1)
			default:
				others.Add(1)
				t.Logf("got %+v, %v", o, o.Err)
			}
		})
	}
	wg.Wait()
	say("hanging: timeouts %t, others %d", timeouts.Load() > 0 && internal.Load() > 0, others.Load())
	say("healthy: %s", s.Send(t.Context(), request("http://healthy.example.com:"+port)).Category)
}

// TestDiagnose_Ours checks errors that a test cannot cause on every machine.
func TestDiagnose_Ours(t *testing.T) {
	dial := func(errno syscall.Errno, address string) error {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		return &stageError{stageDial, &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: os.NewSyscallError("connect", errno)}}
	}
	const four, six = "1.1.1.1:443", "[2606:4700::1]:443"
	for _, tt := range []struct {
		err  error
		want Category
	}{
		{dial(syscall.EMFILE, four), Internal},
		{dial(syscall.ENFILE, four), Internal},
		{dial(syscall.ENOBUFS, six), Internal},
		{dial(syscall.ENOMEM, six), Internal},
		{dial(syscall.EADDRNOTAVAIL, four), Internal},
		{dial(syscall.EADDRNOTAVAIL, six), ConnectionRefused}, // on a machine without IPv6
		{dial(syscall.ECONNREFUSED, four), ConnectionRefused},
		{dial(syscall.ENETUNREACH, four), ConnectionRefused},
		{&stageError{stageDial, &net.DNSError{Err: "dial udp 10.0.0.2:53: socket: too many open files", Name: "x.example"}}, Internal},
		{&stageError{stageDial, &net.DNSError{Err: "server misbehaving", Name: "too many open files"}}, DNSError},
		{&url.Error{Op: "Post", Err: os.NewSyscallError("write", syscall.ENOBUFS)}, Internal},
	} {
		x := &exchange{ctx: t.Context()}
		expect.Equal(t, fmt.Sprint(tt.err), diagnose(context.Background(), x, tt.err).Category, tt.want)
	}
}
