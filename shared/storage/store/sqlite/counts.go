package sqlite

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// encodeCounts writes counts as "name=1,other=-2". Names have neither of the two signs.
func encodeCounts(counts map[string]int64) string {
	if len(counts) == 0 {
		return ""
	}
	b := make([]byte, 0, 16*len(counts))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(append(b, name...), '=')
		b = strconv.AppendInt(b, counts[name], 10)
	}
	return string(b)
}

// decodeCounts reads what [encodeCounts] wrote; nothing is nil.
func decodeCounts(text string) map[string]int64 {
	if text == "" {
		return nil
	}
	counts := make(map[string]int64, 1+strings.Count(text, ","))
	for text != "" {
		var pair string
		pair, text, _ = strings.Cut(text, ",")
		name, digits, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			continue // not written by [encodeCounts]
		}
		counts[name] = n
	}
	return counts
}
