//go:build unix

package awslocal

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed emulators
var emulators embed.FS

// kind is how a service is installed and launched.
type kind struct {
	env    string // names a running endpoint
	folder string // below emulators
	// identity is the file that identifies an installation: a change of the file causes a new installation. If it is empty,
	// all files of the folder count. localstack/start.sh uses the same installation of MiniStack.
	identity string
	origin   string // for the message to the waiting user
	build    func(ctx context.Context, dir string) error
	launch   func(ctx context.Context, dir string) (*process, string, error)
}

var kinds = map[Service]kind{
	DynamoDB:   {env: EnvDynamoDB, folder: "dynamodb", origin: "Maven Central, 50 MB", build: buildJava, launch: launchDynamoDB},
	SQS:        {env: EnvSQS, folder: "elasticmq", origin: "Maven Central, 40 MB", build: buildJava, launch: launchElasticMQ},
	EventRuler: {env: EnvEventRuler, folder: "eventruler", origin: "Maven Central, 3 MB", build: buildJava, launch: launchEventRuler},
	MiniStack:  {env: EnvMiniStack, folder: "ministack", identity: "requirements.txt", origin: "PyPI, 50 MB", build: buildPython, launch: launchMiniStack},
}

// install returns the directory in which k is installed, and installs it if necessary. If several processes call it
// concurrently, one installs while the others wait for its lock. A directory gets its name when it is complete.
func install(ctx context.Context, log io.Writer, k kind) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	id, err := k.id()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(cache, "mcp-events")
	dir := filepath.Join(parent, k.folder+"-"+id)
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	unlock, err := Lock(ctx, filepath.Join(parent, k.folder+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(dir) {
		return dir, nil
	}

	fmt.Fprintf(log, "awslocal: installing %s from %s into %s; this is done once\n", k.folder, k.origin, dir)
	temp, err := os.MkdirTemp(parent, k.folder+"-installing-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, k.files()); err != nil {
		return "", err
	}
	if err := k.build(ctx, temp); err != nil {
		return "", err
	}
	// The script that starts MiniStack without Docker takes no lock and may have been first.
	if err := os.Rename(temp, dir); err != nil && !isDir(dir) {
		return "", err
	}
	fmt.Fprintf(log, "awslocal: installed %s\n", k.folder)
	return dir, nil
}

func (k kind) files() fs.FS {
	sub, err := fs.Sub(emulators, path.Join("emulators", k.folder))
	if err != nil {
		panic(err) // The folder is part of this package.
	}
	return sub
}

// id returns 12 hexadecimal digits that identify the content of the installation.
func (k kind) id() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(k.files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || (k.identity != "" && name != k.identity) {
			return err
		}
		content, err := fs.ReadFile(k.files(), name)
		if err != nil {
			return err
		}
		hash.Write(content)
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil))[:12], err
}

// buildJava fetches the jars of pom.xml into lib and compiles the emulator's main class next to them.
func buildJava(ctx context.Context, dir string) error {
	lib := filepath.Join(dir, "lib")
	err := command(ctx, dir, "mvn", "-B", "-q", "-f", "pom.xml",
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+lib)
	if err != nil {
		return err
	}
	return command(ctx, dir, "javac", "-d", "classes", "-cp", filepath.Join(lib, "*"), "Emulator.java")
}

// buildPython creates a virtual environment with the packages of requirements.txt.
func buildPython(ctx context.Context, dir string) error {
	if err := command(ctx, dir, "python3", "-m", "venv", "venv"); err != nil {
		return err
	}
	return command(ctx, dir, filepath.Join("venv", "bin", "python"), "-m", "pip", "install",
		"--quiet", "--disable-pip-version-check", "--no-input", "-r", "requirements.txt")
}

// command runs a program of an installation; its output is only told on failure.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if strings.Contains(name, string(filepath.Separator)) {
		cmd.Path = filepath.Join(dir, name)
		cmd.Err = nil
	}
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out.String())
	}
	return nil
}

// Lock waits for an exclusive lock of the file, which the system gives back when the process dies.
func Lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for the lock %s: %w", name, ctx.Err())
		case <-tick.C:
		}
	}
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
