package layout

import (
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

var update = flag.Bool("update", false, "write testdata/api.txt")

// apiFile lists the public API, so that a change of it is seen in review.
const apiFile = "testdata/api.txt"

// TestPublicAPI lists the exported names of the packages client and server. They must not mention a type of shared/, because the packages
// there change with every version.
func TestPublicAPI(t *testing.T) {
	var lines []string
	for _, p := range load(t, "client", "server") {
		short := types.RelativeTo(p)
		qualify := func(other *types.Package) string {
			if name := short(other); name != other.Path() {
				return name
			}
			return other.Path()
		}
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			if !o.Exported() {
				continue
			}
			for _, line := range describe(o, qualify) {
				lines = append(lines, p.Name()+": "+line)
			}
		}
	}
	for _, line := range lines {
		if strings.Contains(line, module) {
			t.Errorf("the public API has %q, want no type of this module outside of client and server", line)
		}
	}
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		expect.OK(t, os.WriteFile(apiFile, []byte(got), 0o600))
	}
	was := strings.Split(string(expect.Value(os.ReadFile(apiFile))(t)), "\n")
	for _, line := range lines {
		if !slices.Contains(was, line) {
			t.Errorf("the public API has %q, want it in %s (go test ./tools/layout -update)", line, apiFile)
		}
	}
	for _, line := range was {
		if line != "" && !slices.Contains(lines, line) {
			t.Errorf("the public API lacks %q of %s: say so in the changelog, and run go test ./tools/layout -update", line, apiFile)
		}
	}
}

// describe returns a line for an exported object, and one for each of its exported fields and methods.
func describe(o types.Object, qualify types.Qualifier) (lines []string) {
	name, isType := o.(*types.TypeName)
	if !isType {
		return []string{types.ObjectString(o, qualify)}
	}
	if name.IsAlias() {
		return []string{"type " + name.Name() + " = " + types.TypeString(types.Unalias(name.Type()), qualify)}
	}
	underlying := name.Type().Underlying()
	switch u := underlying.(type) {
	case *types.Struct:
		lines = append(lines, "type "+name.Name()+" struct")
		for f := range u.Fields() {
			if f.Exported() {
				lines = append(lines, fmt.Sprintf("field %s.%s %s", name.Name(), f.Name(), types.TypeString(f.Type(), qualify)))
			}
		}
	case *types.Interface:
		lines = append(lines, "type "+name.Name()+" interface")
	default:
		lines = append(lines, "type "+name.Name()+" "+types.TypeString(u, qualify))
	}
	all := types.NewMethodSet(types.NewPointer(name.Type()))
	if types.IsInterface(underlying) {
		all = types.NewMethodSet(name.Type())
	}
	for m := range all.Methods() {
		if m.Obj().Exported() {
			lines = append(lines, fmt.Sprintf("method %s.%s%s", name.Name(), m.Obj().Name(),
				strings.TrimPrefix(types.TypeString(m.Type(), qualify), "func")))
		}
	}
	return lines
}

// load type-checks packages of this module from the export data that the go command keeps in its cache.
func load(t *testing.T, names ...string) (loaded []*types.Package) {
	t.Helper()
	args := []string{"-export", "-deps", "-json=ImportPath,Export"}
	for _, name := range names {
		args = append(args, module+name)
	}
	files := map[string]string{}
	for _, p := range list[struct{ ImportPath, Export string }](t, args...) {
		files[p.ImportPath] = p.Export
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	for _, name := range names {
		loaded = append(loaded, expect.Value(from.Import(module+name))(t))
	}
	return loaded
}
