package httpjson

import (
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// CheckEncoding returns an error of kind fault.Unsupported if the headers of a request name a Content-Encoding other than identity. Handlers
// that read the body as it arrives call it first, because otherwise they would report compressed JSON as invalid JSON, or act on a body that
// a proxy in front of the server could not read.
func CheckEncoding(h http.Header) error {
	for _, codings := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(codings, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return fault.New(fault.Unsupported, "the Content-Encoding %.32q is not supported (send the body without a Content-Encoding)", coding)
			}
		}
	}
	return nil
}
