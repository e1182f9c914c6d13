package image

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// release is what .goreleaser.yaml says.
type release struct {
	Builds []struct {
		Main, Binary               string
		Env, Goos, Goarch, Ldflags []string
	}
	Archives []struct{ Files []string }
	NFPMs    []struct {
		Contents []struct {
			Src, Dst, Type string
			FileInfo       struct{ Mode os.FileMode } `yaml:"file_info"`
		}
		Scripts map[string]string
	} `yaml:"nfpms"`
	Checksum struct{ Algorithm string }
	SBOMs    []struct {
		Artifacts, Cmd string
		Args           []string
	} `yaml:"sboms"`
}

func releases(t *testing.T) (file release) {
	t.Helper()
	expect.OK(t, yaml.Unmarshal([]byte(read(t, ".goreleaser.yaml")), &file))
	if len(file.Builds) != 1 || len(file.Archives) != 1 || len(file.SBOMs) != 1 {
		t.Fatalf("%+v", file)
	}
	return file
}

// TestAllReleasesBuild lists the packages of every platform. By default it compiles only the platform of this machine, whose
// packages are in the cache, because another one takes a minute or two.
func TestAllReleasesBuild(t *testing.T) {
	t.Parallel()
	b := releases(t).Builds[0]
	t.Run("RCH-10 Linux and macOS on two architectures, which build", func(t *testing.T) {
		if !slices.Equal(b.Goos, []string{"linux", "darwin"}) || !slices.Equal(b.Goarch, []string{"amd64", "arm64"}) {
			t.Fatalf("%q on %q", b.Goos, b.Goarch)
		}
		for _, system := range b.Goos {
			for _, architecture := range b.Goarch {
				args := []string{"list", "-deps", b.Main}
				if harness.Full() || system == runtime.GOOS && architecture == runtime.GOARCH {
					args = []string{"build", "-o", os.DevNull, b.Main}
				}
				cmd := exec.CommandContext(t.Context(), "go", args...)
				cmd.Dir, cmd.Env = harness.Root(t), append(os.Environ(), append(b.Env, "GOOS="+system, "GOARCH="+architecture)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s/%s: %v\n%s", system, architecture, err, out)
				}
			}
		}
	})
}

// TestTheRelease holds the configuration of releases; make lint-release has the tool's own check.
func TestTheRelease(t *testing.T) {
	t.Parallel()
	file := releases(t)
	b := file.Builds[0]
	t.Run("RCH-10 checksums and an SBOM, and files that there are", func(t *testing.T) {
		expect.Equal(t, "the algorithm", file.Checksum.Algorithm, "sha256")
		expect.Equal(t, "the artifacts", file.SBOMs[0].Artifacts, "binary")
		for _, name := range file.Archives[0].Files {
			read(t, name)
		}
	})
	t.Run("RCH-10 the packages have the service, its files and scripts of a shell", func(t *testing.T) {
		modes := map[string]os.FileMode{}
		for _, c := range file.NFPMs[0].Contents {
			read(t, c.Src)
			modes[c.Dst] = c.FileInfo.Mode
			if strings.HasPrefix(c.Dst, "/etc/") && c.Type != "config|noreplace" {
				t.Errorf("%s has type %q, want one that keeps changes", c.Dst, c.Type)
			}
		}
		want := map[string]os.FileMode{
			"/usr/share/doc/mcpevents/copyright": 0, "/usr/lib/systemd/system/mcpevents.service": 0, "/etc/mcpevents/catalog.yaml": 0o644,
			"/etc/mcpevents/config.yaml": 0o644, "/etc/mcpevents/environment": 0o600,
		}
		expect.Map(t, "the files", modes, want)
		for when, script := range file.NFPMs[0].Scripts {
			if out, err := exec.CommandContext(t.Context(), "sh", "-n", filepath.Join(harness.Root(t), script)).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", when, err, out)
			}
		}
	})
	t.Run("RCH-10 the version of a tag is the program's", func(t *testing.T) {
		binary := filepath.Join(t.TempDir(), b.Binary)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", strings.ReplaceAll(b.Ldflags[0], "{{ .Version }}", "1.2.3"), "-o", binary, b.Main)
		cmd.Dir = harness.Root(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.CommandContext(t.Context(), binary, "version").Output()
		if err != nil || !strings.HasPrefix(string(out), "mcpevents 1.2.3 ") {
			t.Errorf("%v: %s", err, out)
		}
		t.Run("it runs as the service says, once its configuration has a key", func(t *testing.T) { runService(t, binary) })
		t.Run("its SBOM names the modules that it has", func(t *testing.T) {
			modules := sbom(t, file, binary)
			for _, want := range []string{"github.com/aws/aws-sdk-go-v2", "modernc.org/sqlite"} {
				expect.Has(t, "the modules", modules, want)
			}
		})
	})
	t.Run("RCH-10 go install takes the module from elsewhere", func(t *testing.T) {
		mod := read(t, "go.mod")
		if !strings.HasPrefix(mod, "module github.com/mcp-events/mcpevents\n") {
			t.Error("the module's path is not that of its repository")
		}
		if found := regexp.MustCompile(`(?m)^\s*(replace|exclude|toolchain)\b.*`).FindString(mod); found != "" {
			t.Errorf("go install of a version refuses a module with %q", found)
		}
	})
}

// TestTheNotesOfARelease tests the text that the workflow of releases gives to a release.
func TestTheNotesOfARelease(t *testing.T) {
	t.Parallel()
	notes := func(tag string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(harness.Root(t), ".ci", "release-notes"), tag)
		out, err := cmd.Output()
		return string(out), err
	}
	t.Run("RCH-10 they are the section of the version, short, with links that work elsewhere", func(t *testing.T) {
		text := expect.Value(notes("v0.1.0"))(t)
		expect.Contains(t, "the section", text, "The first release.")
		expect.Lacks(t, "the section", text, "\n## ")
		expect.AtMost(t, "the number of words, which one reads in a minute", len(strings.Fields(text)), 300)
		for _, link := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(text, -1) {
			path, ok := strings.CutPrefix(link[1], "https://github.com/mcp-events/mcpevents/blob/v0.1.0/")
			if path, _, _ = strings.Cut(path, "#"); !ok || read(t, path) == "" {
				t.Errorf("%s is not a link to a file of the release", link[1])
			}
		}
	})
	t.Run("a release candidate has the notes of its version", func(t *testing.T) {
		text, err := notes("v0.1.0-rc.1")
		expect.OK(t, err)
		expect.Contains(t, "the section", text, "The first release.", "/blob/v0.1.0-rc.1/")
	})
	t.Run("the version of the code has a section, and is the same in the template and the image", func(t *testing.T) {
		expect.OK(t, expect.ErrOf(notes("v"+app.Version)), "the section of CHANGELOG.md for", app.Version)
		for file, want := range map[string]string{"template.yaml": "\n      Version: " + app.Version + "\n", "Dockerfile": " VERSION=" + app.Version + "\n"} {
			expect.Contains(t, file, read(t, file), want)
		}
	})
	t.Run("a version without a section is refused", func(t *testing.T) {
		if text, err := notes("v99.0.0"); err == nil {
			t.Errorf("got\n%s", text)
		}
	})
}

// sbom has the release's command describe a binary, and returns the names of the components.
func sbom(t *testing.T, file release, binary string) (names []string) {
	t.Helper()
	document := filepath.Join(t.TempDir(), "sbom.json")
	args := slices.Clone(file.SBOMs[0].Args)
	for i := range args {
		args[i] = strings.NewReplacer("$document", document, "$artifact", binary).Replace(args[i])
	}
	if out, err := exec.CommandContext(t.Context(), file.SBOMs[0].Cmd, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b := expect.Value(os.ReadFile(document))(t)
	var bom struct {
		BOMFormat  string `json:"bomFormat"`
		Components []struct{ Name string }
	}
	if err := json.Unmarshal(b, &bom); err != nil || bom.BOMFormat != "CycloneDX" {
		t.Fatalf("%v: %.200s", err, b)
	}
	for _, c := range bom.Components {
		names = append(names, c.Name)
	}
	return names
}
