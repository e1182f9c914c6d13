package admin

import (
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// typeView is an event type of the catalog as the API shows it.
type typeView struct {
	Name        string   `json:"name"`
	URI         string   `json:"uri"` // with its variables in braces
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Delivery    []string `json:"delivery"`
}

func (h *eventHandlers) listTypes(c *call) (any, error) {
	after, limit := c.page()
	if c.err != nil {
		return nil, c.err
	}
	cat, err := h.catalogs.Catalog(c.Context(), c.who.Workspace)
	if err != nil {
		return nil, err
	}
	page, next := cut(cat.Entries(), func(e *catalog.Entry) string { return e.Name }, after, limit)
	return listOf(c, page, next, func(e *catalog.Entry) typeView {
		return typeView{e.Name, e.URI + e.URITemplate, e.Title, e.Description, e.Delivery}
	}), nil
}

// tailed are the partitions of the log that a live stream tails: those of the URIs of all types, as far as they fit.
func (h *eventHandlers) tailed(c *call) (parts []eventlog.Partition, truncated bool, err error) {
	cat, err := h.catalogs.Catalog(c.Context(), c.who.Workspace)
	if err != nil {
		return nil, false, err
	}
	for _, e := range cat.Entries() {
		some, more, err := h.partitions(c, cat, "", e.Name)
		if err != nil { // the URIs of the type have nothing in common
			truncated = true
			continue
		}
		parts, truncated = append(parts, some...), truncated || more
	}
	if len(parts) > maxTailed {
		return parts[:maxTailed], true, nil
	}
	return parts, truncated, nil
}
