// Command admin is the function for the admin API and the console, with which operators and owners inspect and
// control the deployment. It does not attempt deliveries or open secrets: dispatch and retry carry out what it
// requests. It streams its responses, because a page of events may exceed the size limit of a buffered response.
package main

import (
	"net/http"

	"github.com/aws/aws-lambda-go/lambdaurl"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app/operators"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
)

func main() {
	p := boot.Start()
	subscriptions, operations := p.Subscriptions(), webhooks.Operations(&p.Core)
	replays := webhooks.Replays(&p.Core, subscriptions, operations)
	api := admin.New(operators.Admin(&p.Core, subscriptions, operations, replays, webhooks.Switches(&p.Core, false)))
	lambdaurl.Start(p.Measured(p.Fronted(operators.Handler(&p.Core, p.Mode, api, p.Serve(http.NotFoundHandler())))), p.Ending())
}
