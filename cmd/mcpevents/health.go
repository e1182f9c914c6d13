package main

import (
	"context"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// HealthCmd asks a server whether it works: for a container, which has no other program that could.
type HealthCmd struct {
	Remote
	Timeout time.Duration `default:"3s" help:"How long the answer may take."`
}

// Run implements the command.
func (c *HealthCmd) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	url, err := c.server().Endpoint("/healthz")
	if err != nil {
		return err
	}
	resp, _, err := c.server().Do(ctx, http.MethodGet, url, http.Header{}, nil)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fault.New(fault.Unavailable, "%s is not healthy: HTTP %d", url, resp.StatusCode)
	}
	return err
}
