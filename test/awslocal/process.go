//go:build unix

package awslocal

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// process is an emulator that ends when its standard input is closed: by
// [process.stop], or by the system when this process dies in any way.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *tail
	ended chan struct{} // closed when the process has ended and its output is read
	err   error         // how it ended; valid once ended is closed
}

// begin starts a program. Its output is kept for error messages, its last 16 KiB.
func begin(dir string, env []string, name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	p := &process{cmd: cmd, out: &tail{line: make(chan string, 1)}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	cmd.WaitDelay = 5 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop asks the process to end, kills it if it has not within five seconds, and
// waits for it.
func (p *process) stop() {
	p.stdin.Close()
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// fail stops a process that did not come up and says what it printed.
func (p *process) fail(cause error) error {
	p.stop()
	return fmt.Errorf("%w; it printed:\n%s", cause, p.out.String())
}

var errEnded = errors.New("the process ended")

// listening waits for the line "listening HOST:PORT".
func (p *process) listening(ctx context.Context) (url string, err error) {
	select {
	case addr := <-p.out.line:
		return "http://" + addr, nil
	case <-p.ended:
		return "", p.fail(errEnded)
	case <-ctx.Done():
		return "", p.fail(ctx.Err())
	}
}

// answering waits until a GET of url answers 200.
func (p *process) answering(ctx context.Context, url string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return p.fail(err)
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.ended:
			return p.fail(errEnded)
		case <-ctx.Done():
			return p.fail(ctx.Err())
		case <-tick.C:
		}
	}
}

func launchDynamoDB(ctx context.Context, dir string) (*process, string, error) {
	return launchJava(ctx, dir, "-Djava.library.path="+filepath.Join(dir, "lib"))
}

func launchElasticMQ(ctx context.Context, dir string) (*process, string, error) {
	return launchJava(ctx, dir)
}

func launchEventRuler(ctx context.Context, dir string) (*process, string, error) {
	return launchJava(ctx, dir)
}

// launchJava runs the installed main class with options that make a small JVM start fast.
func launchJava(ctx context.Context, dir string, options ...string) (*process, string, error) {
	args := append([]string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx768m"}, options...)
	args = append(args, "-cp", "classes"+string(os.PathListSeparator)+filepath.Join("lib", "*"), "Emulator")
	p, err := begin(dir, nil, "java", args...)
	if err != nil {
		return nil, "", err
	}
	url, err := p.listening(ctx)
	return p, url, err
}

//go:embed emulators/ministack/launch.py
var miniStackProgram string

// launchMiniStack needs to say the port before MiniStack takes it; another
// process may be faster, so it tries again with another one.
func launchMiniStack(ctx context.Context, dir string) (p *process, url string, err error) {
	return launchMiniStackWith(ctx, dir, "")
}

// launchMiniStackWith also makes Python packages available to MiniStack, and MiniStack to its functions, unless packages
// is empty.
func launchMiniStackWith(ctx context.Context, dir, packages string) (p *process, url string, err error) {
	for range 3 {
		var port int
		if port, err = freePort(); err != nil {
			return nil, "", err
		}
		url = "http://127.0.0.1:" + strconv.Itoa(port)
		env := []string{
			"BIND_HOST=127.0.0.1", "GATEWAY_PORT=" + strconv.Itoa(port),
			"IOT_MTLS_ENABLED=0", "LOG_LEVEL=WARNING",
			"AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey,
		}
		if packages != "" {
			env = append(env, "MORE_PACKAGES="+packages, "AWS_ENDPOINT_URL="+url)
		}
		p, err = begin(dir, env, filepath.Join(dir, "venv", "bin", "python"), "-c", miniStackProgram)
		if err != nil {
			return nil, "", err
		}
		err = p.answering(ctx, url+"/_ministack/health")
		if err == nil || !errors.Is(err, errEnded) {
			return p, url, err
		}
	}
	return nil, "", err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// tail keeps the end of a process's output and finds the line with the address. It is safe for concurrent use.
type tail struct {
	// line, if not nil, receives the address of the first "listening" line; it has room for one.
	line chan string

	mu   sync.Mutex
	kept []byte
	rest []byte // an unfinished line, until the address is found
	told bool
}

const tailSize = 16 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	if t.line == nil || t.told {
		return len(b), nil
	}
	t.rest = append(t.rest, b...)
	for {
		line, rest, found := bytes.Cut(t.rest, []byte("\n"))
		if !found {
			break
		}
		t.rest = rest
		if addr, ok := bytes.CutPrefix(line, []byte("listening ")); ok {
			t.told, t.rest = true, nil
			t.line <- string(bytes.TrimSpace(addr))
			break
		}
	}
	if len(t.rest) > tailSize {
		t.rest = nil
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
