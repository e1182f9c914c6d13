package dynamo

import (
	"bytes"
	"compress/flate"
	"io"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

type attributes = map[string]types.AttributeValue

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func keyOf(key store.Key) attributes {
	return attributes{
		"pk": &types.AttributeValueMemberS{Value: key.Partition},
		"sk": &types.AttributeValueMemberS{Value: key.Sort},
	}
}

// encode returns the DynamoDB attributes of an item. The parameter mark is nil or identifies this write; see the package comment.
func encode(item store.Item, mark []byte) attributes {
	attrs := keyOf(item.Key)
	attrs["v"] = number(item.Version)
	if packed := deflate(item.Value); packed != nil {
		attrs["z"] = &types.AttributeValueMemberB{Value: packed}
	} else if len(item.Value) > 0 {
		attrs["d"] = &types.AttributeValueMemberB{Value: item.Value}
	}
	for name, n := range item.Counts {
		attrs["c_"+name] = number(n)
	}
	if !item.Expires.IsZero() {
		attrs["exp"] = number(item.Expires.Unix())
	}
	if mark != nil {
		attrs["t"] = &types.AttributeValueMemberB{Value: mark}
	}
	return attrs
}

func decode(table store.Table, attrs attributes) (*store.Item, error) {
	item := &store.Item{Key: store.Key{Table: table}}
	for name, attr := range attrs {
		var err error
		switch a := attr.(type) {
		case *types.AttributeValueMemberS:
			switch name {
			case "pk":
				item.Partition = a.Value
			case "sk":
				item.Sort = a.Value
			}
		case *types.AttributeValueMemberB:
			switch name {
			case "d":
				item.Value = a.Value
			case "z":
				item.Value, err = inflate(a.Value)
			}
		case *types.AttributeValueMemberN:
			err = setNumber(item, name, a.Value)
		}
		if err != nil {
			return nil, fault.Wrap(fault.Internal, err, "reading attribute %s of an item of %s", name, table)
		}
	}
	return item, nil
}

func setNumber(item *store.Item, name, text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return err
	}
	switch {
	case name == "v":
		item.Version = n
	case name == "exp":
		item.Expires = time.Unix(n, 0).UTC()
	case strings.HasPrefix(name, "c_"):
		if item.Counts == nil {
			item.Counts = map[string]int64{}
		}
		item.Counts[name[2:]] = n
	}
	return nil
}

// expression collects the attribute names and values of a DynamoDB expression, which has placeholders such as #n0 and :v0 for them.
type expression struct {
	names  map[string]string
	values attributes
}

// name returns a placeholder for an attribute. Expressions use placeholders because attribute names may be reserved words or contain
// special characters.
func (e *expression) name(attribute string) string {
	for ref, known := range e.names {
		if known == attribute {
			return ref
		}
	}
	if e.names == nil {
		e.names = map[string]string{}
	}
	ref := "#n" + strconv.Itoa(len(e.names))
	e.names[ref] = attribute
	return ref
}

func (e *expression) value(v types.AttributeValue) string {
	if e.values == nil {
		e.values = attributes{}
	}
	ref := ":v" + strconv.Itoa(len(e.values))
	e.values[ref] = v
	return ref
}

// alive returns a condition expression that holds for items that have not expired and for absent items.
func (e *expression) alive(now time.Time) string {
	exp := e.name("exp")
	return "(attribute_not_exists(" + exp + ") OR " + exp + " > " + e.value(number(now.Unix())) + ")"
}

func (e *expression) dead(now time.Time) string {
	return e.name("exp") + " <= " + e.value(number(now.Unix()))
}

func (e *expression) condition(c store.Condition, now time.Time) string {
	switch c.Kind {
	case store.IfAbsent:
		return "attribute_not_exists(pk) OR " + e.dead(now)
	case store.IfExists:
		return "attribute_exists(pk) AND " + e.alive(now)
	case store.IfVersion:
		v := e.name("v")
		equal := v + " = " + e.value(number(c.Version))
		if c.Version == 0 { // an item with only counts has no version
			equal = "(" + equal + " OR attribute_exists(pk) AND attribute_not_exists(" + v + "))"
		}
		return equal + " AND " + e.alive(now)
	}
	return ""
}

func (e *expression) markIsNot(mark []byte) string {
	t := e.name("t")
	return "(attribute_not_exists(" + t + ") OR " + t + " <> " + e.value(&types.AttributeValueMemberB{Value: mark}) + ")"
}

// sum returns an update expression that adds the item's counts to the stored ones. It also sets the expiry and the mark of this write;
// see the package comment.
func (e *expression) sum(item store.Item, mark []byte) string {
	var add []string
	for _, name := range slices.Sorted(maps.Keys(item.Counts)) {
		add = append(add, e.name("c_"+name)+" "+e.value(number(item.Counts[name])))
	}
	var update []string
	if len(add) > 0 {
		update = append(update, "ADD "+strings.Join(add, ", "))
	}
	var set []string
	if !item.Expires.IsZero() {
		set = append(set, e.name("exp")+" = "+e.value(number(item.Expires.Unix())))
	}
	if mark != nil {
		set = append(set, e.name("t")+" = "+e.value(&types.AttributeValueMemberB{Value: mark}))
	}
	if len(set) > 0 {
		update = append(update, "SET "+strings.Join(set, ", "))
	}
	return strings.Join(update, " ")
}

// within returns condition expressions that hold if every stored count stays within its limit after the given counts are added.
func (e *expression) within(counts, limits map[string]int64) (conditions []string) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		// Use big.Int, because the difference may be out of the range of int64. DynamoDB's numbers have 38 digits.
		room := new(big.Int).Sub(big.NewInt(limits[name]), big.NewInt(counts[name]))
		ref := e.name("c_" + name)
		below := ref + " <= " + e.value(&types.AttributeValueMemberN{Value: room.String()})
		if room.Sign() >= 0 {
			below = "(attribute_not_exists(" + ref + ") OR " + below + ")"
		}
		conditions = append(conditions, below)
	}
	return conditions
}

func fits(counts, limits map[string]int64) bool {
	for name, limit := range limits {
		if counts[name] > limit {
			return false
		}
	}
	return true
}

// unit is 1 KiB, because DynamoDB rounds the size of a write up to a multiple of 1 KiB for the bill.
const unit = 1 << 10

// deflaters is a pool of compressors, because a flate.Writer takes more than half a megabyte.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.DefaultCompression)
	if err != nil {
		panic(err) // cannot happen, because the level is valid
	}
	return w
}}

// deflate compresses a value. It returns nil if compression does not save a billing [unit] of DynamoDB. Values in the event log often
// shrink enough, and their bytes are most of the cost of an event.
func deflate(value []byte) []byte {
	if len(value) <= unit {
		return nil
	}
	var out bytes.Buffer
	out.Grow(len(value))
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	w.Reset(&out)
	if _, err := w.Write(value); err != nil {
		return nil
	}
	if err := w.Close(); err != nil || len(value)-out.Len() < unit {
		return nil
	}
	return out.Bytes()
}

func inflate(packed []byte) ([]byte, error) {
	r := flate.NewReader(bytes.NewReader(packed))
	value, err := io.ReadAll(io.LimitReader(r, store.MaxItem+1))
	if err == nil && len(value) > store.MaxItem {
		err = fault.New(fault.Internal, "a value of more than %d bytes", store.MaxItem)
	}
	return value, err
}
