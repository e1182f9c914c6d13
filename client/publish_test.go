package client_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
)

// The errors are for programs, too, so they do not name flags of the command.
func TestPublishRefusesInvalidData(t *testing.T) {
	for name, tc := range map[string]struct {
		publisher  client.Publisher
		data, want string
	}{
		"a number without URI":  {client.Publisher{}, `1`, "give its URI"},
		"a payload without URI": {client.Publisher{}, `{"x":1}`, "give its URI"},
		"one id for two events": {client.Publisher{URI: "event://a/b", ID: "x"}, `1 2`, `the id "x" is for one event`},
		"one id for a list":     {client.Publisher{ID: "x"}, `[{"uri":"event://a/b"},{"uri":"event://a/b"}]`, `the id "x" is for one event`},
		"data that is not JSON": {client.Publisher{URI: "event://a/b"}, `{"x"`, "value 1 of the data is not JSON"},
		"no data":               {client.Publisher{URI: "event://a/b"}, ` `, "the data is empty"},
		"the MCP endpoint":      {client.Publisher{URL: "http://127.0.0.1/mcp"}, `1`, "ends with /mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.publisher.URL == "" {
				tc.publisher.URL = "http://127.0.0.1:1"
			}
			tc.publisher.Tries = 1
			err := tc.publisher.Publish(t.Context(), strings.NewReader(tc.data))
			if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "--") {
				t.Errorf("got %v, want ErrInvalid with %q and without a flag", err, tc.want)
			}
		})
	}
}
