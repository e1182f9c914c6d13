package main

import (
	"context"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// HealthCmd checks whether a server is healthy. Containers use it, because the image contains no other program for that.
type HealthCmd struct {
	Remote
	Timeout time.Duration `default:"3s" help:"How long to wait for the answer."`
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
