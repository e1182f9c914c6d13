//go:build linux

// Package image tests the container image, the compose file and the configuration of releases. Where no container engine is
// there, the image's content is put together as the Dockerfile says and run in a chroot, by its user, on what that user
// cannot write.
package image

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// user is the image's user id.
const user = 65532

// instruction is a line of the last stage of the Dockerfile.
type instruction struct{ name, arguments string }

// finalStage returns the instructions of the Dockerfile's last stage, with continued lines joined.
func finalStage(t *testing.T) (all []instruction) {
	t.Helper()
	text := strings.ReplaceAll(read(t, "Dockerfile"), "\\\n", " ")
	for line := range strings.Lines(text) {
		name, arguments, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name[0] == '#' {
			continue
		}
		if name == "FROM" {
			all = nil
		}
		all = append(all, instruction{name, strings.Join(strings.Fields(arguments), " ")})
	}
	return all
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := expect.Value(os.ReadFile(filepath.Join(harness.Root(t), name)))(t)
	return string(b)
}

// of returns the arguments of all instructions with a name.
func of(all []instruction, name string) (arguments []string) {
	for _, i := range all {
		if i.name == name {
			arguments = append(arguments, i.arguments)
		}
	}
	return arguments
}

func TestTheImage(t *testing.T) {
	t.Parallel()
	stage := finalStage(t)
	for name, want := range map[string][]string{
		"FROM":        {"scratch"},
		"USER":        {"65532:65532"},
		"VOLUME":      {"/data"},
		"RUN":         nil, // there is nothing that could
		"ENTRYPOINT":  {`["/mcpevents"]`},
		"HEALTHCHECK": {`--interval=10s --timeout=5s --start-period=10s CMD ["/mcpevents", "health"]`},
		"COPY": {
			"--from=build --chown=65532:65532 /image/data /data", "--from=build /image/etc /etc", "--from=build /image/mcpevents /mcpevents",
		},
	} {
		t.Run("RCH-10 "+name+" is as small as it can be", func(t *testing.T) {
			expect.List(t, "the files", of(stage, name), want)
		})
	}
	root, binary := content(t)
	t.Run("RCH-10 the binary needs no library", func(t *testing.T) {
		f := expect.Value(elf.Open(binary))(t)
		defer f.Close()
		expect.True(t, "it is not linked to a loader", !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }))
	})
	t.Run("RCH-10 it serves, is healthy, and ends, as its user on a read-only root", func(t *testing.T) { serves(t, root, of(stage, "ENV")[0]) })
}

// content builds the image's content from the files that the engine would receive. It leaves out the certificates, because
// the test makes no TLS connection.
func content(t *testing.T) (root, binary string) {
	t.Helper()
	source := sources(t)
	root = t.TempDir()
	expect.OK(t, os.Chmod(root, 0o755))
	binary = filepath.Join(root, "mcpevents")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X github.com/mcp-events/mcpevents/shared/app.Version=9.8.7", "-o", binary, "./cmd/mcpevents")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("what .dockerignore leaves does not build: %v\n%s", err, out)
	}
	for name, mode := range map[string]os.FileMode{"data": 0o700, "etc/mcpevents": 0o755} {
		expect.OK(t, os.MkdirAll(filepath.Join(root, name), mode))
	}
	if os.Getuid() == 0 {
		expect.OK(t, os.Chown(filepath.Join(root, "data"), user, user))
	}
	for name, text := range map[string]string{
		"catalog.yaml": read(t, "catalog.yaml"),
		"config.yaml":  "keys: [{principal: a, scopes: [events:read], sha256: 2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683}]\n",
	} {
		expect.OK(t, os.WriteFile(filepath.Join(root, "etc", "mcpevents", name), []byte(text), 0o644))
	}
	return root, binary
}

// sources copies what .dockerignore lets through.
func sources(t *testing.T) string {
	t.Helper()
	var kept []string
	for line := range strings.Lines(read(t, ".dockerignore")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			kept = append(kept, name)
		}
	}
	dir := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "-z", "--"}, kept...)...)
	list.Dir = harness.Root(t)
	names, err := list.Output()
	expect.OK(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		to := filepath.Join(dir, name)
		expect.OK(t, os.MkdirAll(filepath.Dir(to), 0o755))
		b, err := os.ReadFile(filepath.Join(list.Dir, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err == nil {
			err = os.WriteFile(to, b, 0o644)
		}
		expect.OK(t, err)
	}
	return dir
}

// confined has a command run in a directory as its root, by the user of the image.
func confined(root string) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		a.Credential = &syscall.Credential{Uid: user, Gid: user}
		return a
	}
	a.Cloneflags = syscall.CLONE_NEWUSER // in which everybody may change the root
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}}
	return a
}

func serves(t *testing.T, root, environment string) {
	address := harness.FreeAddr(t)
	run := func(arguments ...string) (*exec.Cmd, *bytes.Buffer) {
		said := &bytes.Buffer{}
		cmd := exec.Command("/mcpevents", arguments...)
		cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = "/", confined(root), said, said
		cmd.Env = append(strings.Fields(environment), "MCPEVENTS_ADDR="+address, "MCPEVENTS_SERVER=http://"+address) // not port 8080, which may be taken
		return cmd, said
	}
	health, _ := run("health")
	health.Run()
	expect.Equal(t, "the exit code", health.ProcessState.ExitCode(), 5)
	demo, shown := run("demo") // keeps its data in a temporary directory, for which only the volume has space
	if err := demo.Run(); err != nil || !strings.Contains(shown.String(), "a server that was killed lost none of 1,000.") {
		t.Errorf("demo: %v\n%s", err, shown)
	}
	server, said := run("serve")
	expect.OK(t, server.Start())
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for healthy := false; !healthy; {
		probe, _ := run("health")
		healthy = probe.Run() == nil
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, said)
		case <-ctx.Done():
			t.Fatal("it is not healthy")
		default:
		}
	}
	version, text := run("version")
	if err := version.Run(); err != nil || !strings.HasPrefix(text.String(), "mcpevents 9.8.7 ") {
		t.Errorf("%v: %s", err, text)
	}
	expect.AtLeast(t, "the files of the volume", len(expect.Value(os.ReadDir(filepath.Join(root, "data")))(t)), 1)
	expect.OK(t, server.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		expect.OK(t, err, said)
	case <-ctx.Done():
		_ = server.Process.Kill()
		t.Error("it does not end")
	}
}

// TestTheComposeFile holds what an engine would be given.
func TestTheComposeFile(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Build       string
			ReadOnly    bool     `yaml:"read_only"`
			CapDrop     []string `yaml:"cap_drop"`
			SecurityOpt []string `yaml:"security_opt"`
			Ports       []string
			Volumes     []string
		}
		Volumes map[string]any
	}
	expect.OK(t, yaml.Unmarshal([]byte(read(t, "compose.yaml")), &file))
	s, ok := file.Services["mcpevents"]
	if !ok || s.Build != "." || !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
		t.Errorf("RCH-10: the rights are %+v", s)
	}
	if !slices.Equal(s.Ports, []string{"127.0.0.1:8080:8080"}) || !slices.Equal(s.Volumes, []string{"data:/data", "./etc:/etc/mcpevents:ro"}) || len(file.Volumes) != 1 {
		t.Errorf("RCH-10: ports %q, volumes %q of %v", s.Ports, s.Volumes, file.Volumes)
	}
}

// TestAnEngineRunsTheImage builds and starts the image where an engine answers; TestTheImage is for all other machines.
func TestAnEngineRunsTheImage(t *testing.T) {
	t.Parallel()
	engine := func(arguments ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "docker", arguments...)
		cmd.Dir = harness.Root(t)
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if _, err := engine("info"); err != nil {
		t.Log("no container engine answers: TestTheImage has run the image's content without one")
		return
	}
	if out, err := engine("build", "--tag", "mcpevents:test", "."); err != nil {
		t.Fatalf("RCH-10: %v\n%s", err, out)
	}
	root, _ := content(t)
	id, err := engine("run", "--detach", "--read-only", "--cap-drop", "ALL", "--volume", "/data", "--volume", filepath.Join(root, "etc", "mcpevents")+":/etc/mcpevents:ro", "mcpevents:test")
	expect.OK(t, err, "RCH-10", id)
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", "--volumes", id).Run() })
	harness.Eventually(t, time.Minute, "health of the container", func() bool {
		state, err := engine("inspect", "--format", "{{.State.Health.Status}}", id)
		return err == nil && state == "healthy"
	})
}
