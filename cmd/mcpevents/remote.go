package main

import "github.com/mcp-events/mcpevents/shared/protocol/httpcall"

// Remote holds the flags of every command that calls a server.
type Remote struct {
	Server string `default:"http://127.0.0.1:8080" env:"MCPEVENTS_SERVER" placeholder:"URL" help:"URL of the server (${default}). If /events and /mcp are on different hosts, as on AWS without a custom domain, give the whole URL that the command needs."`
	Key    string `env:"MCPEVENTS_KEY" placeholder:"KEY" help:"API key, sent as Authorization: Bearer KEY. Prefer the variable, because other users of the machine can see arguments."`
}

// server returns the address of the server and the identity of the caller.
func (r *Remote) server() httpcall.Server {
	return httpcall.Server{URL: r.Server, Key: r.Key, Agent: agent()}
}
