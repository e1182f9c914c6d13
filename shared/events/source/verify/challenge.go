package verify

// maxChallenge is the maximum length of a challenge. Slack's have about fifty characters.
const maxChallenge = 1000

// Challenge returns the challenge in a url_verification request of Slack's Events API, which Slack sends when someone
// enters the URL of the server. Body is the decoded JSON of a verified request. The result is false for any other
// body.
func Challenge(body any) (string, bool) {
	object, _ := body.(map[string]any)
	if object["type"] != "url_verification" {
		return "", false
	}
	challenge, ok := object["challenge"].(string)
	if !ok || challenge == "" || len(challenge) > maxChallenge {
		return "", false
	}
	return challenge, true
}
