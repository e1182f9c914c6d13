package admin

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// noteHandlers list, write and remove the notes about failing origins.
type noteHandlers struct{ switches *switches.Set }

// list responds with a page of notes, or with the note of one origin.
func (h *noteHandlers) list(c *call) (any, error) {
	if c.Origin == "" {
		notes, next, err := h.switches.Notes(c.Context(), c.who.Workspace, c.After, c.Limit)
		return newList(c, notes, next, asIs), err
	}
	of, err := h.switches.NotesOf(c.Context(), c.who.Workspace, c.Origin)
	if err != nil {
		return nil, err
	}
	notes := []switches.Note{}
	if n := of[c.Origin]; n != nil {
		notes = append(notes, *n)
	}
	return newList(c, notes, "", asIs), nil
}

// origin returns the origin in the path.
func (h *noteHandlers) origin(c *call) (string, error) {
	name, err := switches.Parse(string(switches.Origin(c.PathValue("name"))))
	return strings.TrimPrefix(string(name), string(switches.Origin(""))), err
}

// before returns the note of an origin for the audit trail. It is nil if there is none.
func (h *noteHandlers) before(c *call, origin string) (*switches.Note, error) {
	notes, err := h.switches.NotesOf(c.Context(), c.who.Workspace, origin)
	return notes[origin], err
}

func (h *noteHandlers) put(c *call) (any, error) {
	origin, err := h.origin(c)
	if err != nil {
		return nil, err
	}
	var in struct {
		Text string `json:"text"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, err
	}
	in.Text = strings.TrimSpace(in.Text)
	if n := utf8.RuneCountInString(in.Text); n == 0 || n > maxReason {
		return nil, fault.New(fault.Invalid, "text has %d characters (allowed: 1 to %d)", n, maxReason)
	}
	before, err := h.before(c, origin)
	if err != nil {
		return nil, err
	}
	after := switches.Note{Origin: origin, Text: in.Text, By: c.who.ID, At: time.Now().UTC()}
	return after, c.change("note.write", origin, before, after, func() error {
		return h.switches.SetNote(c.Context(), c.who.Workspace, after)
	})
}

func (h *noteHandlers) remove(c *call) (any, error) {
	origin, err := h.origin(c)
	if err != nil {
		return nil, err
	}
	before, err := h.before(c, origin)
	if err != nil || before == nil {
		return noContent, err
	}
	return noContent, c.change("note.remove", origin, before, nil, func() error {
		return h.switches.RemoveNote(c.Context(), c.who.Workspace, origin)
	})
}
