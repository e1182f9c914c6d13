package main

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// SourceCmd holds the commands for sources.
type SourceCmd struct {
	Check SourceCheckCmd `cmd:"" help:"Show the events that a saved request or message would publish."`
}

// SourceCheckCmd runs a saved request through a source.
type SourceCheckCmd struct {
	Config  string    `required:"" env:"MCPEVENTS_CONFIG" placeholder:"FILE" help:"The configuration with the source."`
	Catalog string    `default:"catalog.yaml" env:"MCPEVENTS_CATALOG" help:"The catalog of its workspace."`
	Source  string    `required:"" placeholder:"NAME" help:"Name of the source."`
	Request string    `required:"" placeholder:"FILE" help:"File with an HTTP request as it was sent: headers, an empty line and the body, with or without the request line. For a bus source, the message. - reads standard input."`
	At      time.Time `placeholder:"TIME" help:"When the request arrived, for signatures that expire, e.g. 2026-11-22T12:00:00Z. Default: now."`
}

// Help returns the long help of the command.
func (c *SourceCheckCmd) Help() string {
	return `Prints a line of JSON for the request, or for each record of an S3 message: the outcome, the mapping that was used (counted from 1), and the document to which patterns and JSON Pointers apply. It sends nothing. It checks the signature if the secrets are in the environment. The exit code is 0 if an event would be published, and 3 if none would or the signature is not valid.

Example:
  mcpevents source check --config config.yaml --source github --request request.txt`
}

// Run implements the command.
func (c *SourceCheckCmd) Run(g *Globals) error {
	cfg, err := readConfig(c.Config)
	if err != nil {
		return err
	}
	source, err := cfg.Source(c.Source)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "%s", c.Config)
	}
	cat, err := readCatalog(c.Catalog)
	if err != nil {
		return err
	}
	if err := ingest.CheckCatalog(cat, source); err != nil {
		return err
	}
	var raw []byte
	if c.Request == "-" {
		raw, err = io.ReadAll(g.in)
	} else {
		raw, err = read("request", c.Request)
	}
	if err != nil {
		return err
	}
	if c.At.IsZero() {
		c.At = time.Now()
	}
	trials, err := ingest.Try(context.Background(), cat, source, raw, c.At, secret.FromEnvironment)
	if err != nil {
		return err
	}
	e := json.NewEncoder(g.out)
	e.SetEscapeHTML(false)
	published := false
	for _, t := range trials {
		if err := e.Encode(t); err != nil {
			return fault.Wrap(fault.Internal, err, "print")
		}
		if t.Refused() {
			return fault.New(fault.Unprocessable, "no event would be published: the signature is %s", t.Signature)
		}
		published = published || t.Kind == ingest.Accepted
	}
	if !published {
		return fault.New(fault.Unprocessable, "no event would be published")
	}
	return nil
}
