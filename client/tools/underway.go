package tools

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxUnderWay bounds the requests of the client that are not answered.
const maxUnderWay = 64

// bounded is a transport whose connection refuses a request while maxUnderWay others are not answered. Whatever is no
// request is read on, for it may end one of them.
type bounded struct{ mcp.Transport }

// Connect implements [mcp.Transport].
func (b bounded) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := b.Transport.Connect(ctx)
	return &connection{Connection: c, underWay: map[sdk.ID]struct{}{}}, err
}

type connection struct {
	mcp.Connection

	mu       sync.Mutex
	underWay map[sdk.ID]struct{}
}

// Read implements [mcp.Connection].
func (c *connection) Read(ctx context.Context) (sdk.Message, error) {
	for {
		m, err := c.Connection.Read(ctx)
		r, ok := m.(*sdk.Request)
		if err != nil || !ok || !r.IsCall() {
			return m, err
		}
		n := c.begin(r.ID)
		if n < maxUnderWay {
			return m, nil
		}
		refused := &sdk.Error{Code: http.StatusTooManyRequests, Message: fmt.Sprintf("%d requests are under way, which is the most: wait for an answer first", n)} // as the endpoint where a limit is reached
		if err = c.Connection.Write(ctx, &sdk.Response{ID: r.ID, Error: refused}); err != nil {
			return nil, err
		}
	}
}

// begin is how many other requests are under way. One whose id is in use already is not counted again: the session
// passes it over.
func (c *connection) begin(id sdk.ID) (others int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.underWay[id]; again {
		return 0
	}
	others = len(c.underWay)
	if others < maxUnderWay {
		c.underWay[id] = struct{}{}
	}
	return others
}

// Write implements [mcp.Connection].
func (c *connection) Write(ctx context.Context, m sdk.Message) error {
	if r, ok := m.(*sdk.Response); ok {
		c.mu.Lock()
		delete(c.underWay, r.ID)
		c.mu.Unlock()
	}
	return c.Connection.Write(ctx, m)
}
