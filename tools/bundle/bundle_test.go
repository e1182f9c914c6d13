package main

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

const root = "../.."

// contents returns the files of an archive, and the modes.
func contents(t *testing.T, b []byte) (files map[string][]byte, modes map[string]os.FileMode) {
	t.Helper()
	z := expect.Value(zip.NewReader(bytes.NewReader(b), int64(len(b))))(t)
	files, modes = map[string][]byte{}, map[string]os.FileMode{}
	for _, f := range z.File {
		r := expect.Value(f.Open())(t)
		files[f.Name] = expect.Value(io.ReadAll(r))(t)
		_ = r.Close()
		modes[f.Name] = f.Mode()
	}
	return files, modes
}

func TestTheBundleHasAllThatADeploymentNeeds(t *testing.T) {
	var built []string
	fake := func(_, function, version string, a architecture) ([]byte, error) {
		built = append(built, function)
		return []byte("binary of " + function + " " + version + " " + a.goarch), nil
	}
	for _, a := range architectures {
		t.Run("RCH-10 "+a.lambda, func(t *testing.T) {
			built = nil
			b := expect.Value(bundle(root, "1.2.3", a, fake))(t)
			files, _ := contents(t, b)
			template := string(files["template.yaml"])
			uris := regexp.MustCompile(`(?m)^ +CodeUri: (.*)$`).FindAllStringSubmatch(template, -1)
			mains, err := filepath.Glob(root + "/functions/*/main.go")
			if err != nil || len(built) != len(mains) || len(uris) < 10 {
				t.Fatalf("%d programs were built, and the repository has %d (%v)", len(built), len(mains), err)
			}
			for _, uri := range uris {
				function, zipped := contents(t, files[uri[1]])
				folder := strings.TrimSuffix(uri[1], ".zip")
				if want := "binary of " + folder + " 1.2.3 " + a.goarch; string(function["bootstrap"]) != want || len(function) != 1 {
					t.Errorf("%s has %q, want bootstrap with %q", uri[1], function, want)
				}
				expect.Equal(t, uri[1]+": the mode of bootstrap", zipped["bootstrap"].Perm(), 0o755)
				expect.Has(t, "the built folders", built, folder)
			}
			expect.Lacks(t, "the template, which SAM must not build", template, "BuildMethod")
			want := "Architecture:\n    Type: String\n    Default: " + a.lambda + "\n    AllowedValues: [" + a.lambda + "]\n"
			expect.Contains(t, "the template", template, want)
			for _, name := range []string{"samconfig.toml", "catalog.yaml", "LICENSE"} {
				want, err := os.ReadFile(filepath.Join(root, name))
				if err != nil || !bytes.Equal(files[name], want) {
					t.Errorf("%s differs from the repository's (%v)", name, err)
				}
			}
			again, err := bundle(root, "1.2.3", a, fake)
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("a second build of the same source differs (%v)", err)
			}
		})
	}
}

// TestAFunctionIsBuiltForItsArchitecture compiles one function, for the architecture for which other tests compile its packages.
func TestAFunctionIsBuiltForItsArchitecture(t *testing.T) {
	b := expect.Value(compile(root, "functions/publish", "1.2.3", architectures[0]))(t)
	f := expect.Value(elf.NewFile(bytes.NewReader(b)))(t)
	if f.Machine != elf.EM_AARCH64 || slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Errorf("RCH-10: it is for %v, or needs a loader", f.Machine)
	}
	if !bytes.Contains(b, []byte("1.2.3")) {
		t.Error("RCH-10: it does not have the version of the release")
	}
}

func TestAVersionIsNeeded(t *testing.T) {
	for _, version := range []string{"", "v1.2.3", "1.2.3 -X main.x=y", "../1"} {
		expect.Error(t, version, run(version, t.TempDir()), "is not a version")
	}
}
