// Package ready holds ready-made sources: for each provider a folder with the event types (catalog.yaml), the source that
// makes them of what the provider sends (config.yaml), and what a person has to set (provider.yaml). [Write] puts those
// of some providers together into files that an operator goes on with.
//
// Nothing here runs: the texts are read by package config and package catalog, as an operator's own are. The samples
// that they are tested with, and where those come from, are in testdata. To add a provider, add its folder, its name in
// the embed directive, and samples. Go on in shared/events/source.
package ready

import (
	"bytes"
	"embed"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

//go:embed alertmanager cloudwatch github linear pagerduty s3 slack stripe
var files embed.FS

// Provider is who sends what becomes events.
type Provider struct {
	// Name is what it is chosen by.
	Name string `yaml:"-"`
	// Title is how it calls itself.
	Title string `yaml:"title"`
	// Documentation is its own page about what it sends.
	Documentation string `yaml:"documentation"`
	// Setup is what a person does, step by step.
	Setup []string `yaml:"setup"`
}

// Providers lists all there are, by name.
func Providers() []Provider {
	folders, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the files are part of the program
	}
	all := make([]Provider, len(folders))
	for i, f := range folders {
		all[i] = provider(f.Name())
	}
	return all
}

func provider(name string) Provider {
	p := Provider{Name: name}
	d := yaml.NewDecoder(bytes.NewReader(read(name, "provider.yaml")))
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil {
		panic(name + ": " + err.Error()) // a file of the program, which a test reads
	}
	return p
}

// Select finds providers by their names, in the order of these. One that is named twice is there once.
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

// Names are those of all providers.
func Names() []string {
	all := Providers()
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name
	}
	return names
}

// Catalog is the text of a catalog with the event types of the providers.
func Catalog(providers ...Provider) []byte {
	var b bytes.Buffer
	b.WriteString("# Event types of sources, as mcpevents catalog init wrote them. They are yours to change: check them with\n" +
		"# mcpevents catalog check.\nevents:\n")
	for _, p := range providers {
		comment(&b, p.Title)
		b.Write(body(p.Name, "catalog.yaml", "events:\n"))
	}
	return b.Bytes()
}

// Config is the text of a configuration with the sources of the providers, and what to do at each as comments.
func Config(providers ...Provider) []byte {
	var b bytes.Buffer
	b.WriteString("# Sources, as mcpevents catalog init wrote them. They are yours to change. HOST is where providers reach the server.\n" +
		"# A secret is a reference: env:NAME is an environment variable, ssm:/NAME a parameter of SSM Parameter Store on AWS.\nsources:\n")
	for _, p := range providers {
		comment(&b, p.Title+", "+p.Documentation)
		for _, step := range p.Setup {
			comment(&b, "- "+step)
		}
		b.Write(body(p.Name, "config.yaml", "sources:\n"))
	}
	return b.Bytes()
}

// body is a file without its first line.
func body(name, file, first string) []byte {
	rest, ok := bytes.CutPrefix(read(name, file), []byte(first))
	if !ok {
		panic(name + "/" + file + " does not begin with " + first) // a test reads all
	}
	return rest
}

func read(name, file string) []byte {
	text, err := files.ReadFile(path.Join(name, file))
	if err != nil {
		panic(err) // the files are part of the program
	}
	return text
}

// width is how long a line of a comment gets.
const width = 120

// comment writes a text as a comment among the items of a list.
func comment(b *bytes.Buffer, text string) {
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
