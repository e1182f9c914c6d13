// Command bundle writes the release files for AWS: for each architecture an archive with the built functions, a template, and the other
// files that "sam deploy" needs.
//
//	go run ./tools/bundle -version 0.1.0 -out build/bundle
package main

import (
	"archive/zip"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", "", "version of the release, e.g. 0.1.0")
	out := flag.String("out", "build/bundle", "directory for the archives")
	flag.Parse()
	if err := run(*version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func run(version, out string) error {
	if !regexp.MustCompile(`^[0-9][0-9A-Za-z.+-]*$`).MatchString(version) {
		return fmt.Errorf("-version %q is not a version (e.g. 0.1.0)", version)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, a := range architectures {
		archive, err := bundle(".", version, a, compile)
		if err != nil {
			return fmt.Errorf("%s: %w", a.lambda, err)
		}
		name := filepath.Join(out, fmt.Sprintf("mcpevents-aws_%s_%s.zip", version, a.lambda))
		if err := os.WriteFile(name, archive, 0o644); err != nil {
			return err
		}
		fmt.Println(name)
	}
	return nil
}

type architecture struct{ lambda, goarch string }

var architectures = []architecture{{"arm64", "arm64"}, {"x86_64", "amd64"}}

// compile uses the flags of make sam-build.
func compile(dir, function, version string, a architecture) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "bundle-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary := filepath.Join(tmp, "bootstrap")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "lambda.norpc",
		"-ldflags", "-s -w -X github.com/mcp-events/mcpevents/shared/app.Version="+version, "-o", binary, "./"+function)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+a.goarch)
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", function, err, text)
	}
	return os.ReadFile(binary)
}

// codeURI and build match the lines of the template that tell SAM to compile.
var (
	codeURI = regexp.MustCompile(`(?m)^( +CodeUri: )(functions/([a-z]+))$`)
	build   = regexp.MustCompile(`(?m)^ +Metadata: \{BuildMethod: .*\n`)
	choice  = regexp.MustCompile(`(?m)^(  Architecture:\n    Type: String\n    Default: ).*\n    AllowedValues: .*\n`)
)

func bundle(dir, version string, a architecture, make func(dir, function, version string, a architecture) ([]byte, error)) ([]byte, error) {
	template, err := os.ReadFile(filepath.Join(dir, "template.yaml"))
	if err != nil {
		return nil, err
	}
	functions := codeURI.FindAllSubmatch(template, -1)
	if len(functions) == 0 || !choice.Match(template) {
		return nil, fmt.Errorf("template.yaml has no CodeUri of a function, or no parameter Architecture, in the expected form")
	}
	template = codeURI.ReplaceAll(template, []byte("${1}functions/${3}.zip"))
	template = build.ReplaceAll(template, nil)
	template = choice.ReplaceAll(template, []byte("${1}"+a.lambda+"\n    AllowedValues: ["+a.lambda+"]\n"))
	files := []file{{"template.yaml", template, 0o644}, {"README.md", []byte(strings.ReplaceAll(readme, "VERSION", version)), 0o644}}
	for _, name := range []string{"samconfig.toml", "catalog.yaml", "LICENSE"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, b, 0o644})
	}
	added := map[string]bool{}
	for _, f := range functions {
		if added[string(f[2])] {
			continue // the code of two functions
		}
		added[string(f[2])] = true
		binary, err := make(dir, string(f[2]), version, a)
		if err != nil {
			return nil, err
		}
		zipped, err := archive([]file{{"bootstrap", binary, 0o755}})
		if err != nil {
			return nil, err
		}
		files = append(files, file{"functions/" + string(f[3]) + ".zip", zipped, 0o644})
	}
	return archive(files)
}

const readme = `# mcp-events VERSION for AWS

This archive has the functions, built, and a template that deploys them. Follow
https://github.com/mcp-events/mcpevents/blob/vVERSION/docs/how-to/deploy-to-aws.md in this folder. You need the SAM
command line and AWS credentials, as that page says, but no Go and no clone. Leave out "make sam-build", because
this archive is its result.

    export AWS_REGION=eu-central-1
    sam deploy

To upgrade, run "sam deploy" in the archive of the newer version.
`

type file struct {
	name string
	data []byte
	mode os.FileMode
}

// modified is the time of all files, so that the same source makes the same archive.
var modified = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

func archive(files []file) ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: modified}
		if strings.HasSuffix(f.name, ".zip") {
			h.Method = zip.Store // it is compressed already
		}
		h.SetMode(f.mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
