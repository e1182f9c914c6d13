package conversation

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// consents stores consents as items:
//
//	table subscriptions, consent#WORKSPACE#HASH(principal)
//	  p#PROVIDER   the latest time that consent was given or revoked
//
// They do not expire. A revoked consent stays, as a record of the revocation. A consent covers a provider's name, its
// destination, and the kinds of messages that it received at that time, so a new URL or a new kind needs a new
// consent.
type consents struct {
	db     store.DB
	broken *metric.Undecodable
}

// Consent is a decision about one provider.
type Consent struct {
	// Given is false if the consent was revoked.
	Given bool `json:"given"`
	// At is when it was given or revoked, and By is the principal or operator who did it.
	At time.Time `json:"at"`
	By string    `json:"by"`
	// Kinds are the kinds of messages that it covers.
	Kinds []Kind `json:"kinds,omitempty"`
}

// consentItem is the stored form of a consent.
type consentItem struct {
	V         int    `json:"v"`
	Principal string `json:"pr"`
	Provider  string `json:"p"`
	// To is a hash of the provider's destination.
	To string `json:"to"`
	Consent
}

const consentVersion = 1

func consentPartition(workspace, principal string) string {
	h := sha256.Sum256([]byte(principal))
	return "consent#" + workspace + "#" + base64.RawURLEncoding.EncodeToString(h[:])
}

// Consented returns the partition with the consents of a principal.
func Consented(workspace, principal string) store.Key { return consentKey(workspace, principal, "") }

func consentKey(workspace, principal, provider string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: consentPartition(workspace, principal), Sort: "p#" + provider}
}

// destination hashes the address of a provider, because its query may contain a secret.
func destination(parts ...string) string {
	b, _ := json.Marshal(parts) // strings
	h := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(h[:])
}

// list reads all consents of a principal, strongly consistent, by provider.
func (c consents) list(ctx context.Context, workspace, principal string) (map[string]consentItem, error) {
	out := map[string]consentItem{}
	err := store.Each(ctx, c.db, Consented(workspace, principal), "read the consents", func(it *store.Item) error {
		var item consentItem
		if json.Unmarshal(it.Value, &item) != nil || item.V != consentVersion {
			c.broken.Add(ctx, "consent") // counts as not given
			return nil
		}
		out[item.Provider] = item
		return nil
	})
	return out, err
}

func (c consents) write(ctx context.Context, workspace string, item consentItem) error {
	item.V = consentVersion
	value, err := json.Marshal(item)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a consent")
	}
	err = c.db.Write(ctx, store.Put(store.Item{Key: consentKey(workspace, item.Principal, item.Provider), Value: value, Version: 1}))
	return fault.Wrap(fault.Unavailable, err, "write a consent")
}

// covers reports whether a message of the kind may be sent to this destination.
func (i consentItem) covers(to string, kind Kind) bool {
	return i.Given && i.To == to && slices.Contains(i.Kinds, kind)
}
