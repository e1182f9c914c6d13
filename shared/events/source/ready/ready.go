// Package ready contains ready-made sources for GitHub, Stripe and other providers. Each provider has a folder with event types
// (catalog.yaml), a source that produces them (config.yaml), and setup steps for a person (provider.yaml). [Write] combines the files of
// the chosen providers into a catalog and a configuration, which the operator can then edit.
//
// Packages config and catalog parse these files like any operator's own. The samples for the tests, and notes on
// their origin, are in testdata. To add a provider, add its folder, its name in the embed directive, and samples.
// Read shared/events/source next.
package ready

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

//go:embed alertmanager cloudwatch github linear pagerduty s3 slack stripe
var files embed.FS

// Provider is a service whose webhooks or messages become events.
type Provider struct {
	// Name is the name of the provider's folder. It also selects the provider in the command "catalog init".
	Name string `yaml:"-"`
	// Title is the provider's own name for itself.
	Title string `yaml:"title"`
	// Documentation is the URL of the provider's page about its webhooks or messages.
	Documentation string `yaml:"documentation"`
	// Setup lists the steps with which a person sets up the provider, in order.
	Setup []string `yaml:"setup"`
}

// Providers returns all providers, sorted by name.
func Providers() []Provider {
	folders, err := files.ReadDir(".")
	if err != nil {
		panic(err) // cannot happen: the files are embedded
	}
	all := make([]Provider, len(folders))
	for i, f := range folders {
		all[i] = readProvider(f.Name())
	}
	return all
}

func readProvider(name string) Provider {
	p := Provider{Name: name}
	d := yaml.NewDecoder(bytes.NewReader(read(name, "provider.yaml")))
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil {
		panic(name + ": " + err.Error()) // cannot happen, because a test reads all embedded files
	}
	return p
}

// Select returns the providers with the given names, in that order and without repetitions.
func Select(names ...string) ([]Provider, error) {
	all := Providers()
	var chosen []Provider
	for _, name := range names {
		i := slices.IndexFunc(all, func(p Provider) bool { return p.Name == name })
		if i < 0 {
			return nil, fault.New(fault.Invalid, "there is no ready-made source %.64q (there are: %s)", name, strings.Join(Names(), ", "))
		}
		if !slices.ContainsFunc(chosen, func(p Provider) bool { return p.Name == name }) {
			chosen = append(chosen, all[i])
		}
	}
	return chosen, nil
}

// Names returns the names of all providers.
func Names() []string {
	all := Providers()
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name
	}
	return names
}

// Catalog returns the YAML of a catalog with the providers' event types.
func Catalog(providers ...Provider) []byte {
	var b bytes.Buffer
	b.WriteString("# Event types of sources, as mcpevents catalog init wrote them. They are yours to change: check them with\n" +
		"# mcpevents catalog check.\nevents:\n")
	for _, p := range providers {
		writeComment(&b, p.Title)
		b.Write(listBody(p.Name, "catalog.yaml", "events:\n"))
	}
	return b.Bytes()
}

// Config returns the YAML of a configuration with the providers' sources. Comments list the setup steps of each provider.
func Config(providers ...Provider) []byte {
	var b bytes.Buffer
	b.WriteString("# Sources, as mcpevents catalog init wrote them. They are yours to change. HOST is where providers reach the server.\n" +
		"# A secret is a reference: env:NAME is an environment variable, ssm:/NAME a parameter of SSM Parameter Store on AWS.\nsources:\n")
	for _, p := range providers {
		writeComment(&b, p.Title+", "+p.Documentation)
		for _, step := range p.Setup {
			writeComment(&b, "- "+step)
		}
		b.Write(listBody(p.Name, "config.yaml", "sources:\n"))
	}
	return b.Bytes()
}

// listBody returns a provider's file without its first line ("events:" or "sources:"), for joining several files.
func listBody(name, file, first string) []byte {
	rest, ok := bytes.CutPrefix(read(name, file), []byte(first))
	if !ok {
		panic(name + "/" + file + " does not begin with " + first) // cannot happen, because a test reads all embedded files
	}
	return rest
}

func read(name, file string) []byte {
	text, err := files.ReadFile(path.Join(name, file))
	if err != nil {
		panic(err) // cannot happen: the files are embedded
	}
	return text
}

const width = 120 // the maximum length of a comment line

func writeComment(b *bytes.Buffer, text string) {
	const margin = "  #"
	line := margin
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = margin + "  "
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// List prints one line per provider with its name, its title and its event types.
func List(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range Providers() {
		cat, err := catalog.Parse(Catalog(p))
		if err != nil {
			return fault.Wrap(fault.Internal, err, "read the event types of %s", p.Name)
		}
		var names []string
		for _, e := range cat.Entries() {
			names = append(names, e.Name)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Title, strings.Join(names, ", "))
	}
	return fault.Wrap(fault.Internal, w.Flush(), "print")
}

// Names of the files that [Write] writes.
const (
	CatalogFile = "catalog.yaml"
	ConfigFile  = "config.yaml"
)

// Write writes the providers' event types and sources to two files in a folder, which it creates if needed. If one of the files exists and
// force is false, it changes no file and returns an error of kind fault.Conflict.
func Write(dir string, providers []Provider, force bool) error {
	if len(providers) == 0 {
		return fault.New(fault.Invalid, "no ready-made source is named (there are: %s)", strings.Join(Names(), ", "))
	}
	paths := []string{filepath.Join(dir, CatalogFile), filepath.Join(dir, ConfigFile)}
	if !force {
		if err := checkAbsent(paths); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.Wrap(fault.Invalid, err, "make the folder")
	}
	for i, content := range [][]byte{Catalog(providers...), Config(providers...)} {
		if err := os.WriteFile(paths[i], content, 0o644); err != nil { // contains no secrets, only references to them
			return fault.Wrap(fault.Invalid, err, "write %s", paths[i])
		}
	}
	return nil
}

func checkAbsent(paths []string) error {
	var there []string
	for _, p := range paths {
		_, err := os.Lstat(p)
		switch {
		case err == nil:
			there = append(there, p)
		case !errors.Is(err, fs.ErrNotExist):
			return fault.Wrap(fault.Invalid, err, "look for %s", p)
		}
	}
	if len(there) == 0 {
		return nil
	}
	verb := "exists"
	if len(there) > 1 {
		verb = "exist"
	}
	return fault.New(fault.Conflict, "%s %s already, so no file was written. Write into another folder with --dir and copy the entries of events and sources from there, or replace the files with --force",
		strings.Join(there, " and "), verb)
}
