// Command admin is the function of the admin API and of the console: operators and owners look at what there is and steer it. It
// makes no attempts and opens no secrets; dispatch and retry do what it asks for. Its answers are streamed,
// for a page of events may be larger than a buffered answer.
package main

import (
	"net/http"

	"github.com/aws/aws-lambda-go/lambdaurl"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
)

func main() {
	p := boot.Start()
	subscriptions, operations := p.Subscriptions(), webhooks.Operations(&p.Core)
	replays := webhooks.Replays(&p.Core, subscriptions, operations)
	api := admin.New(webhooks.Admin(&p.Core, subscriptions, operations, replays, webhooks.Switches(&p.Core, false)))
	lambdaurl.Start(p.Measured(p.Fronted(webhooks.Operators(&p.Core, p.Mode, api, p.Serve(http.NotFoundHandler())))), p.Ending())
}
