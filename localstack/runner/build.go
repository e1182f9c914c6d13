package runner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// binary returns the path of the executable for a CodeUri.
func (s *Stack) binary(codeURI string) string {
	if path, ok := s.opts.Binaries[codeURI]; ok {
		return path
	}
	return filepath.Join(s.dir, strings.ReplaceAll(filepath.Clean(codeURI), string(filepath.Separator), "-"))
}

// parallelBuilds is the number of concurrent compilations. Each uses several threads.
const parallelBuilds = 2

// build compiles the functions as the deployment does, but for this machine and without trimming source paths, so
// that the build cache can be used.
func (s *Stack) build(ctx context.Context, sc *scope) error {
	var todo []string
	for _, r := range s.tpl.Resources() {
		if r.Type != functionType {
			continue
		}
		uri, err := s.tpl.Text(r, "CodeUri", sc)
		if err != nil {
			return err
		}
		if _, ok := s.opts.Binaries[uri]; !ok && !slices.Contains(todo, uri) {
			todo = append(todo, uri)
		}
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		fault error
		done  int
	)
	slots := make(chan struct{}, parallelBuilds)
	for _, uri := range todo {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			start := time.Now()
			size, err := s.compile(ctx, uri)
			mu.Lock()
			defer mu.Unlock()
			done++
			switch {
			case err == nil:
				s.progress("built  %s (%d of %d, %.1f MB, %.1f s)", uri, done, len(todo), float64(size)/1e6, time.Since(start).Seconds())
			case fault == nil:
				fault = err
			}
		})
	}
	wg.Wait()
	return fault
}

func (s *Stack) compile(ctx context.Context, uri string) (size int64, err error) {
	dir, err := filepath.Abs(filepath.Join(filepath.Dir(s.opts.Template), filepath.FromSlash(uri)))
	if err != nil {
		return 0, err
	}
	out := s.binary(uri)
	args := []string{"build", "-tags", "lambda.norpc", "-o", out}
	cgo := "CGO_ENABLED=0"
	if s.opts.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	} else {
		args = append(args, "-ldflags", "-s -w")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), cgo)
	if b, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build %s: %w\n%s", uri, err, b)
	}
	info, err := os.Stat(out)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
