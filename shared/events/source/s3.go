package source

import "net/url"

// decodeKeys adds to each record of a notification of S3 the key of its object as it is, for S3 writes it URL-encoded: "red
// flower.jpg" is "red+flower.jpg" there. The member has the name that AWS's own libraries give it.
func decodeKeys(records []any) {
	for _, r := range records {
		if object, ok := member(member(r, "s3"), "object").(map[string]any); ok {
			key, _ := object["key"].(string)
			if decoded, err := url.QueryUnescape(key); err == nil && key != "" {
				object["urlDecodedKey"] = decoded
			}
		}
	}
}

// member is one of an object; nil if there is none.
func member(v any, name string) any {
	object, _ := v.(map[string]any)
	return object[name]
}
