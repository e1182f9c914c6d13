// Command openapi prints the document of the admin API, for the linter that checks it against OpenAPI 3.1.
package main

import (
	"fmt"

	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
)

func main() { fmt.Println(string(operations.Document())) }
