package source

import "net/url"

// decodeKeys adds a member urlDecodedKey to each record of an S3 notification, because S3 URL-encodes the object's
// key: "red flower.jpg" is sent as "red+flower.jpg". AWS's own libraries use the same member name.
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

// member returns a member of an object, or nil if v is not an object or lacks the member.
func member(v any, name string) any {
	object, _ := v.(map[string]any)
	return object[name]
}
